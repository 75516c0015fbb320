"""The ledger's atomic steps as Lua; each one runs whole on the Redis server, on its clock.

Keys of a job, in the order every script gets them:
    1 header (hash)  2 receipts (hash: index -> receipt)  3 leases (zset: index -> deadline, ms)
    4 released (zset: index -> when, ms)  5 returned (zset: index -> not before, ms)
    6 prefix of the trial records (hash each: fence, attempts, owner, phase, started)
    7 all jobs (zset: job -> when it opened, ms)  8 jobs that are not closed (set)
A trial is in exactly one place: not yet released (index >= cursor), returned, released,
leased, or finished (it has a receipt; its record is gone).
"""

from __future__ import annotations

_NOW = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local H, R, L, Q, W, T, J, O = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local state = redis.call('HGET', H, 'state')
"""

# ARGV: job, then field and value pairs of the header.
OPEN = (
    _NOW
    + """
if state then return 0 end
redis.call('HSET', H, 'state', 'open', 'cursor', 0, 'created_at', now)
for i = 2, #ARGV, 2 do redis.call('HSET', H, ARGV[i], ARGV[i + 1]) end
redis.call('ZADD', J, now, ARGV[1])
redis.call('SADD', O, ARGV[1])
return 1
"""
)

# ARGV: receipts. A receipt is a JSON array: index, outcome, reward, ...
RESTORE = (
    _NOW
    + """
for _, text in ipairs(ARGV) do
  local receipt = cjson.decode(text)
  redis.call('HSET', R, receipt[1], text)
  redis.call('ZREM', W, receipt[1])
  redis.call('HINCRBY', H, 'outcome:' .. receipt[2], 1)
  if type(receipt[3]) == 'number' then redis.call('HINCRBYFLOAT', H, 'reward_sum', receipt[3]) end
end
redis.call('HSET', H, 'last_finished_at', now)
return #ARGV
"""
)

# Every trial of a paused job that is not finished waits.
WAIT_ALL = (
    _NOW
    + """
local total = tonumber(redis.call('HGET', H, 'total'))
for i = 0, total - 1 do redis.call('ZADD', W, now, i) end
redis.call('HSET', H, 'cursor', total, 'state', 'paused')
return total
"""
)

# ARGV: limit. Returns the indices to publish.
RELEASE = (
    _NOW
    + """
if state ~= 'open' then return {} end
local h = redis.call('HMGET', H, 'total', 'concurrency', 'cursor')
local total, cursor = tonumber(h[1]), tonumber(h[3])
local room = tonumber(h[2]) - redis.call('ZCARD', L) - redis.call('ZCARD', Q)
room = math.min(room, tonumber(ARGV[1]))
local out = {}
if room > 0 then
  for _, i in ipairs(redis.call('ZRANGEBYSCORE', W, '-inf', now, 'LIMIT', 0, room)) do
    redis.call('ZREM', W, i)
    redis.call('ZADD', Q, now, i)
    out[#out + 1] = tonumber(i)
  end
end
while #out < room and cursor < total do
  redis.call('ZADD', Q, now, cursor)
  out[#out + 1] = cursor
  cursor = cursor + 1
end
redis.call('HSET', H, 'cursor', cursor)
return out
"""
)

# ARGV: index, owner, ttl ms, max attempts. Returns status, fence, attempt, receipt.
CLAIM = (
    _NOW
    + """
local i, ttl = ARGV[1], tonumber(ARGV[3])
if not state then return {'unknown', 0, 0, ''} end
redis.call('ZREM', Q, i)
local receipt = redis.call('HGET', R, i)
if receipt then return {'finished', 0, 0, receipt} end
if state == 'closed' then return {'unknown', 0, 0, ''} end
local lease = redis.call('ZSCORE', L, i)
if lease and tonumber(lease) > now then return {'busy', 0, 0, ''} end
if state == 'paused' then
  redis.call('ZREM', L, i)
  redis.call('ZADD', W, now, i)
  return {'paused', 0, 0, ''}
end
local record = T .. i
local attempts = tonumber(redis.call('HGET', record, 'attempts') or 0)
local status = 'granted'
if state == 'cancelling' then status = 'cancelled'
elseif attempts >= tonumber(ARGV[4]) then status = 'exhausted'
else
  attempts = redis.call('HINCRBY', record, 'attempts', 1)
  if attempts > 1 then redis.call('HINCRBY', H, 'retried', 1) end
  redis.call('HSETNX', H, 'first_started_at', now)
end
local fence = redis.call('HINCRBY', record, 'fence', 1)
redis.call('HSET', record, 'owner', ARGV[2], 'phase', 'claimed', 'started', now)
redis.call('ZREM', W, i)
redis.call('ZADD', L, now + ttl, i)
return {status, fence, attempts, '', tonumber(redis.call('HGET', H, 'epoch') or 0)}
"""
)

# ARGV: index, fence, ttl ms.
RENEW = (
    _NOW
    + """
local i = ARGV[1]
if not redis.call('ZSCORE', L, i) or redis.call('HGET', T .. i, 'fence') ~= ARGV[2] then return 'lost' end
redis.call('ZADD', L, now + tonumber(ARGV[3]), i)
if state == 'cancelling' then return 'cancelled' end
return 'held'
"""
)

# ARGV: index, fence, phase.
PHASE = (
    _NOW
    + """
local record = T .. ARGV[1]
if redis.call('HGET', record, 'fence') == ARGV[2] then redis.call('HSET', record, 'phase', ARGV[3]) end
return 1
"""
)

# ARGV: index, fence, reason, delay ms.
GIVE_BACK = (
    _NOW
    + """
local i, record = ARGV[1], T .. ARGV[1]
if not redis.call('ZSCORE', L, i) or redis.call('HGET', record, 'fence') ~= ARGV[2] then return 0 end
redis.call('ZREM', L, i)
if ARGV[3] == 'drain' then
  local left = redis.call('HINCRBY', record, 'attempts', -1)
  if left > 0 then redis.call('HINCRBY', H, 'retried', -1) end
  redis.call('ZADD', Q, now, i)
else
  redis.call('ZADD', W, now + tonumber(ARGV[4]), i)
end
return 1
"""
)

# ARGV: index, fence, outcome, reward or '', receipt. Fence 0 = a trial nobody holds, of a cancelled job.
COMMIT = (
    _NOW
    + """
local i, fence = ARGV[1], ARGV[2]
local receipt = redis.call('HGET', R, i)
if receipt then return {'already', receipt} end
if fence == '0' then
  if state ~= 'cancelling' or redis.call('ZSCORE', L, i) then return {'fenced', ''} end
elseif redis.call('HGET', T .. i, 'fence') ~= fence or not redis.call('ZSCORE', L, i) then
  return {'fenced', ''}
end
redis.call('HSET', R, i, ARGV[5])
redis.call('ZREM', L, i)
redis.call('ZREM', Q, i)
redis.call('ZREM', W, i)
redis.call('DEL', T .. i)
redis.call('HINCRBY', H, 'outcome:' .. ARGV[3], 1)
if ARGV[4] ~= '' then redis.call('HINCRBYFLOAT', H, 'reward_sum', ARGV[4]) end
redis.call('HSET', H, 'last_finished_at', now)
return {'committed', ARGV[5]}
"""
)

# ARGV: by, reason.
CANCEL = (
    _NOW
    + """
if state ~= 'open' and state ~= 'paused' then return 0 end
redis.call('HSET', H, 'state', 'cancelling', 'cancelled_by', ARGV[1], 'cancel_reason', ARGV[2])
return 1
"""
)

# ARGV: by, reason.
PAUSE = (
    _NOW
    + """
if state ~= 'open' then return 0 end
redis.call('HSET', H, 'state', 'paused', 'paused_by', ARGV[1], 'pause_reason', ARGV[2])
return 1
"""
)

RESUME = (
    _NOW
    + """
if state ~= 'paused' then return 0 end
redis.call('HSET', H, 'state', 'open')
redis.call('HDEL', H, 'paused_by', 'pause_reason')
return 1
"""
)

# ARGV: job, group id, then the indices. A receipt is a JSON array: index, outcome, reward, ...
REOPEN = (
    _NOW
    + """
if state ~= 'closed' then return 0 end
local count = 0
for k = 3, #ARGV do
  local text = redis.call('HGET', R, ARGV[k])
  if text then
    local receipt = cjson.decode(text)
    redis.call('HDEL', R, ARGV[k])
    redis.call('HINCRBY', H, 'outcome:' .. receipt[2], -1)
    if type(receipt[3]) == 'number' then redis.call('HINCRBYFLOAT', H, 'reward_sum', -receipt[3]) end
    redis.call('ZADD', W, now, ARGV[k])
    count = count + 1
  end
end
if count == 0 then return 0 end
redis.call('HSET', H, 'state', 'open', 'group_id', ARGV[2])
redis.call('SADD', O, ARGV[1])
redis.call('HDEL', H, 'cancelled_by', 'cancel_reason')
redis.call('HINCRBY', H, 'epoch', 1)
for _, key in ipairs({H, R, L, Q, W}) do redis.call('PERSIST', key) end
return count
"""
)

# ARGV: limit. Returns indices that nobody holds and nobody will claim.
SWEEP = (
    _NOW
    + """
if state ~= 'cancelling' then return {} end
local limit, out = tonumber(ARGV[1]), {}
for _, zset in ipairs({Q, W}) do
  if #out < limit then
    for _, i in ipairs(redis.call('ZRANGE', zset, 0, limit - #out - 1)) do out[#out + 1] = tonumber(i) end
  end
end
local h = redis.call('HMGET', H, 'total', 'cursor')
local total, cursor = tonumber(h[1]), tonumber(h[2])
while #out < limit and cursor < total do
  redis.call('ZADD', W, now, cursor)
  out[#out + 1] = cursor
  cursor = cursor + 1
end
redis.call('HSET', H, 'cursor', cursor)
return out
"""
)

# ARGV: seconds a closed job is remembered, job.
CLOSE = (
    _NOW
    + """
if not state or state == 'closed' then return 0 end
redis.call('HSET', H, 'state', 'closed')
redis.call('SREM', O, ARGV[2])
for _, key in ipairs({H, R, L, Q, W}) do redis.call('EXPIRE', key, ARGV[1]) end
return 1
"""
)

PROGRESS = (
    _NOW
    + """
return {redis.call('HGETALL', H), redis.call('ZCARD', L), redis.call('ZCARD', Q)}
"""
)

RUNNING = (
    _NOW
    + """
local out = {}
for _, i in ipairs(redis.call('ZRANGE', L, 0, -1)) do
  local r = redis.call('HMGET', T .. i, 'owner', 'phase', 'attempts', 'started')
  out[#out + 1] = {i, r[1] or '', r[2] or '', r[3] or 0, r[4] or 0, redis.call('ZSCORE', L, i)}
end
return out
"""
)

# ARGV: unclaimed ms. Leases that ran out become released again; both kinds are due for a message.
OVERDUE = (
    _NOW
    + """
local out = {}
for _, i in ipairs(redis.call('ZRANGEBYSCORE', Q, '-inf', now - tonumber(ARGV[1]))) do out[#out + 1] = tonumber(i) end
for _, i in ipairs(redis.call('ZRANGEBYSCORE', L, '-inf', now)) do
  redis.call('ZREM', L, i)
  out[#out + 1] = tonumber(i)
end
for _, i in ipairs(out) do redis.call('ZADD', Q, now, i) end
return out
"""
)

# ARGV: job.
FORGET = (
    _NOW
    + """
for _, zset in ipairs({L, Q, W}) do
  for _, i in ipairs(redis.call('ZRANGE', zset, 0, -1)) do redis.call('DEL', T .. i) end
end
redis.call('DEL', H, R, L, Q, W)
redis.call('ZREM', J, ARGV[1])
redis.call('SREM', O, ARGV[1])
return 1
"""
)

# ARGV: index, fence.
LIVE = (
    _NOW
    + """
local lease = redis.call('ZSCORE', L, ARGV[1])
if not lease or tonumber(lease) <= now then return 0 end
return redis.call('HGET', T .. ARGV[1], 'fence') == ARGV[2] and 1 or 0
"""
)

NAMES = (
    "OPEN", "RELEASE", "CLAIM", "RENEW", "PHASE", "GIVE_BACK", "COMMIT", "CANCEL", "SWEEP", "CLOSE",
    "PROGRESS", "RUNNING", "OVERDUE", "FORGET", "LIVE", "PAUSE", "RESUME", "REOPEN", "RESTORE", "WAIT_ALL",
)  # fmt: skip
"""The scripts by name."""
