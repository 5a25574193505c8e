return {'ok', redis.call('GET', base .. 'min_pgn') or '0'}
