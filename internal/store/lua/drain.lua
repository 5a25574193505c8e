-- node, on: 1 | 0, most drained nodes
local node, key = ARGV[1], base .. 'drained'
if ARGV[2] == '0' then
  if redis.call('HDEL', key, node) == 1 then changed() end
  restored('drain:' .. node)
elseif redis.call('HEXISTS', key, node) == 0 then
  if redis.call('HLEN', key) >= tonumber(ARGV[3]) then return 'full' end
  redis.call('HSET', key, node, str(now))
  redis.call('ZREM', base .. 'restored', 'drain:' .. node)
  changed()
end
return 'ok'
