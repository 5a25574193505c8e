-- node, gateway, generation
return fence(ARGV[1], ARGV[2], ARGV[3]) or 'ok'
