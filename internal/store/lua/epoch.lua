-- gateway
local epoch = math.max(num(redis.call('HGET', base .. 'epochs', ARGV[1])) + 1, now)
if epoch >= max_number then return 'exhausted' end
enter(ARGV[1], epoch)
redis.call('ZADD', base .. 'beats', str(now), ARGV[1])
return {'ok', str(epoch)}
