-- gateway: its sessions that have been registered for long enough to be in its beat
local out, all = {'ok'}, redis.call('HGETALL', base .. 'sessions:' .. ARGV[1])
for i = 1, #all, 2 do
  local generation, since = string.match(all[i + 1], '^(%d+) %a+ (%d+)$')
  if now - num(since) >= owner_ttl then
    out[#out + 1] = all[i]
    out[#out + 1] = generation
  end
end
return out
