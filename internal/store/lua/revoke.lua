-- pgn, most subjects, subject...
local pgn, least = tonumber(ARGV[1]), num(redis.call('GET', base .. 'min_pgn'))
local fresh, seen, any = {}, {}, false
if #ARGV > 2 then
  for i, is in ipairs(redis.call('SMISMEMBER', base .. 'revoked', unpack(ARGV, 3))) do
    local s = ARGV[2 + i]
    if is == 0 and not seen[s] then
      fresh[#fresh + 1] = s
      seen[s] = true
    end
  end
end
if #fresh > 0 and redis.call('SCARD', base .. 'revoked') + #fresh > tonumber(ARGV[2]) then return 'full' end
if #fresh > 0 then
  redis.call('SADD', base .. 'revoked', unpack(fresh))
  redis.call('ZREM', base .. 'restored', unpack(fresh))
  any = true
end
for i = 3, #ARGV do disable(ARGV[i]) end
if pgn > least then
  least, any = pgn, true
  redis.call('SET', base .. 'min_pgn', str(least))
end
if any then changed() end
return {'ok', str(least)}
