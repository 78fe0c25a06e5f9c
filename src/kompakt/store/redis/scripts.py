"""Lua scripts of the store. A script is a transaction in Redis.

Other commands wait while a script runs, and everything it writes is one entry of the append-only file, which is
replayed completely or not at all. Redis does not roll back a script that fails half-way. Therefore all checks come
before the first write, and the first write is one that a server without free memory refuses; once it is accepted, so
are the others. The head is written after everything it counts.

Numbers are passed as text, because Lua's numbers are doubles and converting a large one to text rounds it.
"""

from __future__ import annotations

import hashlib

import msgspec


class LuaScript(msgspec.Struct, frozen=True):
    """A script and its SHA-1 digest, by which Redis caches it."""

    text: str
    digest: str


def _script(text: str) -> LuaScript:
    return LuaScript(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


COMMIT = _script("""
local head, rows, names, turns, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local batches, blobs, fences, sessions, notes, noted = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local batch, key, tenant = ARGV[1], ARGV[2], ARGV[3]
if redis.call('SISMEMBER', batches, batch) == 1 then return 'there' end
local now = redis.call('HMGET', head, 'rows', 'events')
if (now[1] or '') ~= ARGV[4] or (now[2] or '') ~= ARGV[5] then return 'changed' end
for at, kind in ipairs({'hash', 'hash', 'hash', 'zset', 'hash', 'set', 'set', 'hash', 'zset', 'set', 'set'}) do
  local found = redis.call('TYPE', KEYS[at]).ok
  if found ~= kind and found ~= 'none' then return redis.error_reply('WRONGTYPE ' .. KEYS[at]) end
end
if ARGV[7] ~= '' and redis.call('HGET', fences, ARGV[6]) ~= ARGV[7] then return 'fenced' end
local at = 8
local function take()
  at = at + 1
  return ARGV[at - 1]
end
local value, name, newest, last = take(), take(), take(), take()
for _ = 1, tonumber(take()) do
  local seq = take()
  redis.call('HSET', rows, seq, take())
  redis.call('HSET', names, take(), seq)
  redis.call('ZADD', turns, take(), seq)
end
for _ = 1, tonumber(take()) do
  redis.call('HSET', events, take(), take())
end
for _ = 1, tonumber(take()) do
  redis.call('SET', tenant .. 'blob:' .. take(), take(), 'NX')
end
for _ = 1, tonumber(take()) do
  local hash = take()
  redis.call('SADD', blobs, hash)
  redis.call('SADD', tenant .. 'uses:' .. hash, key)
end
for _ = 1, tonumber(take()) do
  local note, data = take(), take()
  if redis.call('EXISTS', note) == 0 then
    redis.call('SADD', notes, note)
    redis.call('SADD', noted, key)
    redis.call('SET', note, data)
  end
end
redis.call('HSET', head, 'value', value, 'name', name, 'tenant', tenant, 'rows', newest, 'events', last)
redis.call('ZADD', sessions, 0, key)
redis.call('SADD', batches, batch)
return 'done'
""")
"""Keys: those of the session, the tenant's list, the notes of the session, the tenant's sessions with notes. Arguments:
batch id, session key, prefix of the tenant, the rows and events that the writer read, name and number of the fence,
four values of the head, then rows, events, blobs, used blobs and notes, each preceded by their count."""

HEADS = _script("""
local found = {}
for _, key in ipairs(redis.call('ZRANGE', KEYS[1], ARGV[1], '+', 'BYLEX', 'LIMIT', 0, ARGV[2])) do
  local head = redis.call('HMGET', ARGV[3] .. '{' .. key .. '}:head', 'value', 'name')
  found[#found + 1] = {key, head[1], head[2]}
end
return found
""")
"""Key: the tenant's list. Arguments: start, limit, prefix of the store."""

DELETE = _script("""
local own, key = ARGV[1], ARGV[2]
local tenant = redis.call('HGET', own .. 'head', 'tenant')
local notes = redis.call('SMEMBERS', own .. 'notes')
if tenant then
  for _, hash in ipairs(redis.call('SMEMBERS', own .. 'blobs')) do
    local uses = tenant .. 'uses:' .. hash
    redis.call('SREM', uses, key)
    if redis.call('EXISTS', uses) == 0 then redis.call('UNLINK', tenant .. 'blob:' .. hash) end
  end
  redis.call('ZREM', tenant .. 'sessions', key)
end
for _, name in ipairs(redis.call('HKEYS', own .. 'fences')) do
  redis.call('UNLINK', own .. 'lock:' .. name)
end
for _, note in ipairs(notes) do
  redis.call('UNLINK', note)
  redis.call('SREM', string.match(note, '^[^{]*{%x+}:') .. 'noted', key)
end
redis.call('UNLINK', unpack(KEYS))
return tenant and 1 or 0
""")
"""Keys: those of the session. Arguments: their common prefix, the session key."""

NOTE = _script("""
for _, set in ipairs(KEYS) do
  local found = redis.call('TYPE', set).ok
  if found ~= 'set' and found ~= 'none' then return redis.error_reply('WRONGTYPE ' .. set) end
end
for at = 2, #ARGV, 2 do
  if redis.call('EXISTS', ARGV[at]) == 0 then
    redis.call('SADD', KEYS[1], ARGV[at])
    redis.call('SADD', KEYS[2], ARGV[1])
    redis.call('SET', ARGV[at], ARGV[at + 1])
  end
end
""")
"""Keys: the notes of the session, the tenant's sessions with notes. Arguments: the session key, then the key and value
of each note."""

FORGET = _script("""
for _, note in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if string.sub(note, 1, #ARGV[2]) == ARGV[2] then
    redis.call('UNLINK', note)
    redis.call('SREM', KEYS[1], note)
  end
end
redis.call('SREM', KEYS[2], ARGV[1])
""")
"""Keys: the notes of the session, the tenant's sessions with notes. Arguments: session key, prefix of the tenant."""

ACQUIRE = _script("""
local time = redis.call('TIME')
local number = math.max(time[1] * 1000000 + time[2], (redis.call('HGET', KEYS[2], ARGV[1]) or 0) + 1)
local text = string.format('%.0f', number)
if not redis.call('SET', KEYS[1], text, 'NX', 'PX', ARGV[2]) then return false end
redis.call('HSET', KEYS[2], ARGV[1], text)
return text
""")
"""Keys: the lock, the session's fences. Arguments: name of the lock, lease in milliseconds.

A fence number is the time in microseconds, or one more than the previous number if that is larger. So it grows even if
the session was deleted in between, or the server lost its last second of writes. A double holds it exactly until
2255."""

RENEW = _script("""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
""")
"""Key: the lock. Arguments: fence number, lease in milliseconds."""

RELEASE = _script("""
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
""")
"""Key: the lock. Argument: fence number."""
