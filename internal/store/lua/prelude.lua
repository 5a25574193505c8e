-- What every script begins with. Before it stand `now`, the server's clock in Unix milliseconds, and the constants of
-- redis_scripts.go. KEYS[1] begins every key of the namespace and has its hash tag. A script answers with a code, or with
-- a table whose first element is one.
--
--   node:NAME         hash    instance, generation, floor; missing and last of its rate
--   sessions:GATEWAY  hash    node -> "GENERATION STATE SINCE"; only sessions that can be current are in it
--   beats             zset    gateway -> when it beat last
--   epochs            hash    gateway -> its process
--   gateways          hash    gateway -> "PROCESS WHEN" and what it says of itself
--   revoked           set     subjects                    min_pgn    string
--   drained           hash    node -> since when          version    string, of both
--   restored          zset    what was taken out of revoked and drained -> version then
--   pgn               string  projection                  objects    hash, name -> "REVISION DIGEST"
--   token:JTI         set     attempts that have taken a use; expires
--   incarnation       string                              layout     string
local base = KEYS[1]

-- str is how numbers are stored: tostring loses digits above 1e14.
local function str(n) return string.format('%.0f', n) end
local function num(v) return tonumber(v or '0') end

-- slices calls f with the bounds of pieces of list that unpack can take.
local function slices(first, last, f)
  for from = first, last, 1000 do f(from, math.min(from + 999, last)) end
end

local function is_revoked(subject) return redis.call('SISMEMBER', base .. 'revoked', subject) == 1 end

-- session is a node's with a gateway: generation, state, since. Nothing if it has none.
local function session(gateway, node)
  local v = redis.call('HGET', base .. 'sessions:' .. gateway, node)
  if v then return string.match(v, '^(%d+) (%a+) (%d+)$') end
end

local function put(gateway, node, generation, state, since)
  redis.call('HSET', base .. 'sessions:' .. gateway, node, generation .. ' ' .. state .. ' ' .. since)
end

-- age is how long ago a gateway has shown that it lives, as far as a session of that time is concerned.
local function age(gateway, since)
  return math.max(now - math.max(num(redis.call('ZSCORE', base .. 'beats', gateway)), num(since)), 0)
end

-- end_sessions ends a node's sessions, with every gateway.
local function end_sessions(node)
  for _, g in ipairs(redis.call('ZRANGE', base .. 'beats', 0, -1)) do redis.call('HDEL', base .. 'sessions:' .. g, node) end
end

-- enter reports whether epoch is the gateway's process, or a later one, which ends the sessions of those before.
local function enter(gateway, epoch)
  local known = num(redis.call('HGET', base .. 'epochs', gateway))
  if epoch < known then return false end
  if epoch > known then
    redis.call('HSET', base .. 'epochs', gateway, str(epoch))
    redis.call('UNLINK', base .. 'sessions:' .. gateway)
  end
  redis.call('ZADD', base .. 'beats', 'NX', str(now), gateway)
  return true
end

-- fence says why a session may not be dispatched to, or nothing.
local function fence(node, gateway, generation)
  if is_revoked('node:' .. node) then return 'disabled' end
  local g, state, since = session(gateway, node)
  if g ~= generation then return 'stale' end
  if state ~= 'ready' or age(gateway, since) >= owner_ttl then return 'not_ready' end
end

-- changed numbers a change of revoked, min_pgn or drained, and tells who watches.
local function changed()
  local v = str(math.max(num(redis.call('GET', base .. 'version')) + 1, now))
  redis.call('SET', base .. 'version', v)
  redis.pcall('PUBLISH', base .. 'changed', v) -- a user without the channel only hears later, by the beat
end

-- restored remembers what was taken back, so that no gateway revives it.
local function restored(subject)
  redis.call('ZADD', base .. 'restored', str(math.max(num(redis.call('GET', base .. 'version')), now)), subject)
  redis.call('ZREMRANGEBYRANK', base .. 'restored', 0, -max_restored - 1)
end

-- disable ends the sessions of the node that a revoked subject names, for good.
local function disable(subject)
  local node = string.match(subject, '^node:(.+)$')
  if not node then return end
  end_sessions(node)
  local generation = redis.call('HGET', base .. 'node:' .. node, 'generation')
  if generation then redis.call('HSET', base .. 'node:' .. node, 'floor', str(num(generation) + 1)) end
end
