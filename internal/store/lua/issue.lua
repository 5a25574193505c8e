-- node, gateway, generation, pgn, subject...
local code = fence(ARGV[1], ARGV[2], ARGV[3])
if code then return code end
if tonumber(ARGV[4]) < num(redis.call('GET', base .. 'min_pgn')) then return 'stale_projection' end
if #ARGV > 4 then
  for _, is in ipairs(redis.call('SMISMEMBER', base .. 'revoked', unpack(ARGV, 5))) do
    if is == 1 then return 'revoked' end
  end
end
return 'ok'
