-- A write, as a server that can only be read from does not serve.
redis.call('SET', base .. 'probe', str(now), 'PX', 60000)
return 'ok'
