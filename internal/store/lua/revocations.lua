return {
  'ok', redis.call('SMEMBERS', base .. 'revoked'), redis.call('GET', base .. 'min_pgn') or '0',
  redis.call('HKEYS', base .. 'drained'), redis.call('GET', base .. 'version') or '0',
}
