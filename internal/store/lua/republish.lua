-- pgn, n, n names, n values
local n = tonumber(ARGV[2])
if tonumber(ARGV[1]) <= num(redis.call('GET', base .. 'pgn')) then return 'ok' end
redis.call('SET', base .. 'pgn', ARGV[1])
redis.call('UNLINK', base .. 'objects')
slices(3, 2 + n, function(from, to)
  local fields = {}
  for i = from, to do
    fields[#fields + 1] = ARGV[i]
    fields[#fields + 1] = ARGV[n + i]
  end
  redis.call('HSET', base .. 'objects', unpack(fields))
end)
return 'ok'
