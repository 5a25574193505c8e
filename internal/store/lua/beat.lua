-- gateway, epoch, incarnation for new data, n, n nodes, n generations
local gateway, n = ARGV[1], tonumber(ARGV[4])
if not enter(gateway, tonumber(ARGV[2])) then return 'stale_epoch' end
redis.call('ZADD', base .. 'beats', str(now), gateway)
redis.call('SET', base .. 'incarnation', ARGV[3], 'NX')

for _, g in ipairs(redis.call('ZRANGEBYSCORE', base .. 'beats', '-inf', str(now - forget_gateway), 'LIMIT', 0, 10)) do
  redis.call('ZREM', base .. 'beats', g)
  redis.call('HDEL', base .. 'epochs', g)
  redis.call('UNLINK', base .. 'sessions:' .. g)
end

-- why explains a session that is not there under that generation.
local function why(node, generation, there)
  if is_revoked('node:' .. node) then return 's' end
  if there and generation < num(string.match(there, '^%d+')) then return 's' end
  if generation < num(redis.call('HGET', base .. 'node:' .. node, 'floor')) then return 's' end
  return 'm'
end

local key, verdicts = base .. 'sessions:' .. gateway, {}
slices(5, 4 + n, function(from, to)
  local there = redis.call('HMGET', key, unpack(ARGV, from, to))
  for i = from, to do
    local v, generation = there[i - from + 1], ARGV[i + n]
    local mine = v and string.sub(v, 1, #generation + 1) == generation .. ' '
    verdicts[#verdicts + 1] = mine and 'o' or why(ARGV[i], tonumber(generation), v)
  end
end)
return {
  'ok', redis.call('GET', base .. 'incarnation'), redis.call('GET', base .. 'version') or '0',
  redis.call('HLEN', key), table.concat(verdicts),
}
