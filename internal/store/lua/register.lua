-- node, gateway, instance, watermark, epoch
local node, gateway, instance = ARGV[1], ARGV[2], ARGV[3]
local watermark, epoch = tonumber(ARGV[4]), tonumber(ARGV[5])
local key = base .. 'node:' .. node
if is_revoked('node:' .. node) then return 'disabled' end
local n = redis.call('HMGET', key, 'instance', 'generation', 'missing', 'last')
local before = num(n[2])

-- The rate: the time that the bucket takes to fill. A clock that was set back fills nothing.
local missing = math.max(num(n[3]) - math.max(now - num(n[4]), 0), 0)
local allowed = missing + register_every <= register_burst * register_every
if allowed then missing = missing + register_every end
redis.call('HSET', key, 'missing', str(missing), 'last', str(now))
if not allowed then return 'rate_limited' end

if watermark >= max_number - 1 or watermark > before and watermark > now + max_watermark then return 'watermark_implausible' end
if epoch < num(redis.call('HGET', base .. 'epochs', gateway)) then return 'stale_epoch' end
local generation = math.max(before + 1, now, watermark + 1)
if generation >= max_number then return 'exhausted' end

enter(gateway, epoch)
redis.call('HSET', key, 'generation', str(generation))
if n[1] ~= instance then
  redis.call('HSET', key, 'instance', instance, 'floor', str(generation))
  end_sessions(node)
end
put(gateway, node, str(generation), 'registered', str(now))
return {'ok', str(generation)}
