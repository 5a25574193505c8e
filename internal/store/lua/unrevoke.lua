-- subject...
if #ARGV == 0 then return 'ok' end
if redis.call('SREM', base .. 'revoked', unpack(ARGV)) > 0 then changed() end
for _, s in ipairs(ARGV) do restored(s) end
return 'ok'
