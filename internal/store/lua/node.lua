-- node
local node = ARGV[1]
local n = redis.call('HMGET', base .. 'node:' .. node, 'instance', 'generation', 'floor')
local out = {
  'ok', n[1] or '', n[2] or '0', n[3] or '0',
  is_revoked('node:' .. node) and 1 or 0, redis.call('HEXISTS', base .. 'drained', node),
}
for _, gateway in ipairs(redis.call('ZRANGE', base .. 'beats', 0, -1)) do
  local generation, state, since = session(gateway, node)
  if generation then
    for _, v in ipairs({gateway, generation, state, str(age(gateway, since))}) do out[#out + 1] = v end
  end
end
return out
