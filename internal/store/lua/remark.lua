-- gateway, epoch, version of the view, its min_pgn, n, n revoked subjects, drained node...
if not enter(ARGV[1], tonumber(ARGV[2])) then return 'stale_epoch' end
local view, pgn, n, any = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), false
if view > num(redis.call('GET', base .. 'version')) then redis.call('SET', base .. 'version', ARGV[3]) end

-- since reports whether a subject was taken back after the view.
local function since(subject) return num(redis.call('ZSCORE', base .. 'restored', subject)) > view end

for i = 6, 5 + n do
  if not since(ARGV[i]) then
    if redis.call('SADD', base .. 'revoked', ARGV[i]) == 1 then any = true end
    disable(ARGV[i])
  end
end
for i = 6 + n, #ARGV do
  if not since('drain:' .. ARGV[i]) and redis.call('HSETNX', base .. 'drained', ARGV[i], str(now)) == 1 then any = true end
end
if pgn > num(redis.call('GET', base .. 'min_pgn')) then
  redis.call('SET', base .. 'min_pgn', ARGV[4])
  any = true
end
if any then changed() end
return 'ok'
