-- gateway, epoch, what it says of itself, most gateways to tell of
local key = base .. 'gateways'
if not enter(ARGV[1], tonumber(ARGV[2])) then return 'stale_epoch' end
redis.call('HSET', key, ARGV[1], ARGV[2] .. ' ' .. str(now) .. ' ' .. ARGV[3])
local out, all = {'ok'}, redis.call('HGETALL', key)
for i = 1, #all, 2 do
  local epoch, met, about = string.match(all[i + 1], '^(%d+) (%d+) (.*)$')
  local age = math.max(now - num(met), 0)
  if age >= forget_gateway then
    redis.call('HDEL', key, all[i])
  elseif #out < 4 * tonumber(ARGV[4]) then
    for _, v in ipairs({all[i], epoch, str(age), about}) do out[#out + 1] = v end
  end
end
return out
