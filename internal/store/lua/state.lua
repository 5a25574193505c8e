-- node, gateway, generation, what: ready | suspect | gone
local node, gateway, what = ARGV[1], ARGV[2], ARGV[4]
if what == 'ready' and is_revoked('node:' .. node) then return 'disabled' end
local generation, state, since = session(gateway, node)
if generation ~= ARGV[3] then return 'stale' end
if what == 'gone' then
  redis.call('HDEL', base .. 'sessions:' .. gateway, node)
elseif what == 'ready' or state == 'ready' then
  put(gateway, node, generation, what, since)
end
return 'ok'
