-- gateway, epoch, then of each session: node, instance, generation, state
local gateway = ARGV[1]
if not enter(gateway, tonumber(ARGV[2])) then return 'stale_epoch' end
redis.call('ZADD', base .. 'beats', str(now), gateway)

-- claim takes over a session unless it is known to be over. Generations of a node rise through all its instances: that
-- tells which of two has won.
local function claim(node, instance, generation, state)
  if is_revoked('node:' .. node) then return 's' end
  local key, g = base .. 'node:' .. node, tonumber(generation)
  local n = redis.call('HMGET', key, 'instance', 'generation', 'floor')
  local there, _, since = session(gateway, node)
  local newer = n[1] ~= instance and g > num(n[2])
  if g < num(n[3]) or n[1] ~= instance and not newer or there and num(there) > g then return 's' end
  if newer and n[1] then
    redis.call('HSET', key, 'floor', str(num(n[2]) + 1))
    end_sessions(node)
    there = nil
  end
  redis.call('HSET', key, 'instance', instance, 'generation', str(math.max(num(n[2]), g)))
  put(gateway, node, generation, state, there == generation and since or str(now))
  return 'o'
end

local verdicts = {}
for i = 3, #ARGV, 4 do verdicts[#verdicts + 1] = claim(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) end
return {'ok', table.concat(verdicts)}
