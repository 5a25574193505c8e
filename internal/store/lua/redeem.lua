-- jti, uses, expires, how long to remember it beyond that, attempt
local key, left = base .. 'token:' .. ARGV[1], tonumber(ARGV[3]) - now
if left <= 0 then return 'token_expired' end
if redis.call('SISMEMBER', key, ARGV[5]) == 1 then return 'ok' end
if redis.call('SCARD', key) >= tonumber(ARGV[2]) then return 'token_spent' end
redis.call('SADD', key, ARGV[5])
redis.call('PEXPIRE', key, str(left + tonumber(ARGV[4])))
return 'ok'
