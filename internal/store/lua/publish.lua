-- n, n names, n digests
local n = tonumber(ARGV[1])
local pgn, least = num(redis.call('GET', base .. 'pgn')), num(redis.call('GET', base .. 'min_pgn'))
local same, revisions = pgn > 0 and redis.call('HLEN', base .. 'objects') == n, {}
slices(2, 1 + n, function(from, to)
  for i, v in ipairs(redis.call('HMGET', base .. 'objects', unpack(ARGV, from, to))) do
    local revision, digest
    if v then revision, digest = string.match(v, '^(%d+) (.*)$') end
    if digest ~= ARGV[n + from + i - 1] then revision, same = false, false end
    revisions[#revisions + 1] = revision or false
  end
end)
if not same or pgn < least then
  pgn = math.max(pgn + 1, now, least)
  if pgn >= max_number then return 'exhausted' end
  redis.call('SET', base .. 'pgn', str(pgn))
  redis.call('UNLINK', base .. 'objects')
  slices(1, n, function(from, to)
    local fields = {}
    for i = from, to do
      revisions[i] = revisions[i] or str(pgn)
      fields[#fields + 1] = ARGV[1 + i]
      fields[#fields + 1] = revisions[i] .. ' ' .. ARGV[1 + n + i]
    end
    redis.call('HSET', base .. 'objects', unpack(fields))
  end)
end
return {'ok', str(pgn), table.concat(revisions, ' ')}
