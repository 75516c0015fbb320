"""The ledger's atomic steps on a trial as Lua; each one runs whole on the Redis server, on its clock.

Keys of a job, in the order every script gets them:
    1 header (hash)  2 receipts (hash: index -> receipt)  3 leases (zset: index -> deadline, ms)
    4 released (zset: index -> when, ms)  5 prefix of the returned (zset each lane: index -> not before, ms)
    6 prefix of the trial records (hash each: fence, attempts, owner, phase, started, cancelled)
    7 all jobs (zset: job -> when it opened, ms)  8 jobs that are not closed (set)
A trial is in exactly one place: finished (it has a receipt; its record is gone), leased, released,
returned, or else fresh (its position in its lane >= the lane's cursor). Trial i is in lane i modulo
the number of lanes.
"""

from __future__ import annotations

PRELUDE = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local H, R, L, Q, W, T, J, O = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local head = redis.call('HMGET', H, 'state', 'width')
local state, width = head[1], tonumber(head[2] or 1)

local P = H .. ':previous'  -- receipts of reopened trials, until they have new ones

local function lane_of(i) return W .. (tonumber(i) % width) end

-- The moment from which a trial waits that goes on in the order of the plan: microseconds apart, all past.
local function in_turn(i) return now - (tonumber(redis.call('HGET', H, 'total')) - i) / 1000 end

-- Take a trial out of the returned ones.
local function leave_returned(i)
  if redis.call('ZREM', lane_of(i), i) == 1 and redis.call('HEXISTS', T .. i, 'attempts') == 1 then
    redis.call('HINCRBY', H, 'retrying', -1)
  end
end

-- Let a trial wait until a moment.
local function wait_until(i, at)
  redis.call('ZADD', lane_of(i), at, i)
  if redis.call('HEXISTS', T .. i, 'attempts') == 1 then redis.call('HINCRBY', H, 'retrying', 1) end
end

-- Whether a trial whose attempt was lost needs to be admitted again: what it used may have been the last.
local function has_budget() return (redis.call('HGET', H, 'budget') or '') ~= '' end

-- Count what an attempt used; texts, '' = unknown.
local function settle(usd, tokens, seconds)
  redis.call('HINCRBY', H, 'settled', 1)
  for _, item in ipairs({{'usd', usd}, {'tokens', tokens}, {'s', seconds}}) do
    local name, text = item[1], item[2]
    if text == '' then
      redis.call('HINCRBY', H, 'unknown_' .. name, 1)
    else
      redis.call('HINCRBYFLOAT', H, 'spent_' .. name, text)
      if tonumber(text) > tonumber(redis.call('HGET', H, 'max_' .. name) or 0) then
        redis.call('HSET', H, 'max_' .. name, text)
      end
    end
  end
end

-- Count an attempt of which nothing came back: its time so far, and what was reserved for the rest.
local function settle_lost(i)
  local h = redis.call('HMGET', H, 'budget', 'max_usd', 'max_tokens')
  local budget = h[1] and h[1] ~= '' and cjson.decode(h[1]) or {}
  local started = tonumber(redis.call('HGET', T .. i, 'started') or now)
  redis.call('HINCRBYFLOAT', H, 'spent_s', string.format('%.3f', (now - started) / 1000))
  redis.call('HINCRBYFLOAT', H, 'spent_usd', tostring(budget.trial_cost_usd or h[2] or 0))
  redis.call('HINCRBYFLOAT', H, 'spent_tokens', tostring(budget.trial_tokens or h[3] or 0))
end

-- Record that a trial is finished: nothing else of it is left.
local function finish(i, receipt, outcome)
  leave_returned(i)
  redis.call('HSET', R, i, receipt)
  redis.call('ZREM', L, i)
  redis.call('ZREM', Q, i)
  redis.call('DEL', T .. i)
  redis.call('HDEL', P, i)
  redis.call('HINCRBY', H, 'outcome:' .. outcome, 1)
  redis.call('HSET', H, 'last_finished_at', now)
end

-- Let a reopened trial that did not come to a new end keep its earlier one; returns its receipt or nothing.
local function finish_as_before(i)
  local text = redis.call('HGET', P, i)
  if not text then return nil end
  local receipt = cjson.decode(text)
  finish(i, text, receipt[2])
  if type(receipt[3]) == 'number' then redis.call('HINCRBYFLOAT', H, 'reward_sum', receipt[3]) end
  return text
end

-- Finish a trial nobody holds, of which there is no result; one whose attempts were all lost says so.
local function finish_unrun(i, outcome)
  if finish_as_before(i) then return end
  local attempts, code = tonumber(redis.call('HGET', T .. i, 'attempts') or 0), ''
  if outcome == 'not_started' and attempts > 0 then outcome, code = 'errored', 'worker.lost' end
  local receipt = string.format('[%d,"%s",null,"%s",%d,0.0,null,null,""]', i, outcome, code, attempts)
  finish(i, receipt, outcome)
end
"""

# A message for a fresh trial: a Redis that came back without its last second does not know that it
# released it. ARGV: index, owner, ttl ms, max attempts, a word for this call. Returns status, fence, attempt, receipt, group id.
CLAIM = (
    PRELUDE
    + """
-- Count a fresh trial as released; those before it in its lane wait. Returns whether it was fresh.
local function release_fresh(i)
  local lane, position = i % width, math.floor(i / width)
  local first = tonumber(redis.call('HGET', H, 'cursor:' .. lane) or 0)
  if position < first then return false end
  for before = first * width + lane, i - 1, width do
    if redis.call('HEXISTS', R, before) == 0 then redis.call('ZADD', lane_of(before), now, before) end
  end
  redis.call('HSET', H, 'cursor:' .. lane, position + 1)
  redis.call('HINCRBY', H, 'admitted', 1)
  return true
end

local i, ttl = ARGV[1], tonumber(ARGV[3])
if not state then return {'unknown', 0, 0, ''} end
local receipt = redis.call('HGET', R, i)
if receipt then return {'finished', 0, 0, receipt} end
if state == 'closed' then return {'unknown', 0, 0, ''} end
local lease = redis.call('ZSCORE', L, i)
local record = T .. i
if lease and tonumber(lease) > now then
  -- A call whose answer was lost comes again; it holds what it was given.
  local r = redis.call('HMGET', record, 'call', 'status', 'fence', 'attempts')
  if r[1] ~= ARGV[5] then return {'busy', 0, 0, ''} end
  return {r[2], tonumber(r[3]), tonumber(r[4] or 0), '', redis.call('HGET', H, 'group_id')}
end
if lease then
  settle_lost(i)
  redis.call('HSET', record, 'lost', 1)
  if has_budget() then
    redis.call('ZREM', L, i)
    wait_until(i, now)
    return {'waiting', 0, 0, ''}
  end
elseif redis.call('ZREM', Q, i) == 0 then
  if state == 'paused' or has_budget() or not release_fresh(tonumber(i)) then return {'waiting', 0, 0, ''} end
end
if state == 'paused' then
  redis.call('ZREM', L, i)
  if redis.call('HEXISTS', record, 'attempts') == 0 then redis.call('HINCRBY', H, 'admitted', -1) end
  wait_until(i, now)
  return {'paused', 0, 0, ''}
end
if state == 'stopping' and not lease then
  finish_unrun(i, 'not_started')
  return {'finished', 0, 0, redis.call('HGET', R, i)}
end
local attempts = tonumber(redis.call('HGET', record, 'attempts') or 0)
local status = 'granted'
if state == 'cancelling' or redis.call('HEXISTS', record, 'cancelled') == 1 then status = 'cancelled'
elseif attempts >= tonumber(ARGV[4]) then status = 'exhausted'
else
  attempts = redis.call('HINCRBY', record, 'attempts', 1)
  if attempts > 1 then redis.call('HINCRBY', H, 'retried', 1) end
  local was_lost = redis.call('HDEL', record, 'lost') == 1
  if attempts > 1 and was_lost then redis.call('HINCRBY', H, 'retry:worker.lost', 1) end
  redis.call('HSETNX', H, 'first_started_at', now)
end
-- Records of finished trials are gone; a reopened trial goes on above every fence of its job.
local h = redis.call('HMGET', H, 'group_id', 'first_fence', 'last_fence')
redis.call('HSETNX', record, 'fence', h[2] or 0)
local fence = redis.call('HINCRBY', record, 'fence', 1)
if fence > tonumber(h[3] or 0) then redis.call('HSET', H, 'last_fence', fence) end
redis.call('HSET', record, 'owner', ARGV[2], 'phase', 'claimed', 'started', now, 'status', status, 'call', ARGV[5])
redis.call('ZADD', L, now + ttl, i)
return {status, fence, attempts, '', h[1]}
"""
)

# ARGV: index, fence, ttl ms.
RENEW = (
    PRELUDE
    + """
local i, record = ARGV[1], T .. ARGV[1]
if not redis.call('ZSCORE', L, i) or redis.call('HGET', record, 'fence') ~= ARGV[2] then return 'lost' end
redis.call('ZADD', L, now + tonumber(ARGV[3]), i)
if state == 'cancelling' or redis.call('HEXISTS', record, 'cancelled') == 1 then return 'cancelled' end
return 'held'
"""
)

# ARGV: index, fence, phase.
PHASE = (
    PRELUDE
    + """
local record = T .. ARGV[1]
if redis.call('HGET', record, 'fence') == ARGV[2] then redis.call('HSET', record, 'phase', ARGV[3]) end
return 1
"""
)

# ARGV: index, fence, reason, delay ms, 1 when what was used is known, cost, tokens, seconds, failure code ('' = unknown).
GIVE_BACK = (
    PRELUDE
    + """
local i, record = ARGV[1], T .. ARGV[1]
if not redis.call('ZSCORE', L, i) or redis.call('HGET', record, 'fence') ~= ARGV[2] then return 0 end
if ARGV[3] == 'retry' and state == 'stopping' then return 0 end
redis.call('ZREM', L, i)
if ARGV[5] == '1' then settle(ARGV[6], ARGV[7], ARGV[8]) else settle_lost(i) end
if ARGV[9] ~= '' then redis.call('HINCRBY', H, 'retry:' .. ARGV[9], 1) end
if ARGV[3] == 'drain' then
  if redis.call('HGET', record, 'status') == 'granted' then
    local left = redis.call('HINCRBY', record, 'attempts', -1)
    if left > 0 then redis.call('HINCRBY', H, 'retried', -1) end
  end
  if has_budget() then wait_until(i, now) else redis.call('ZADD', Q, now, i) end
else
  wait_until(i, now + tonumber(ARGV[4]))
end
return 1
"""
)

# ARGV: index, fence, receipt, outcome, reward or '', code, 1 when the failure is permanent,
# cost, tokens, seconds. Returns status, the receipt that counts, 1 when it is the last, state.
COMMIT = (
    PRELUDE
    + """
local i, fence = ARGV[1], ARGV[2]
local receipt = redis.call('HGET', R, i)
if receipt then return {'already', receipt, 0, state or 'closed'} end
if redis.call('HGET', T .. i, 'fence') ~= fence or not redis.call('ZSCORE', L, i) then
  return {'fenced', '', 0, state or 'closed'}
end
local was_executed = redis.call('HGET', T .. i, 'status') == 'granted'
if ARGV[4] ~= 'cancelled' then settle(ARGV[8], ARGV[9], ARGV[10]) elseif was_executed then settle_lost(i) end
local text = ARGV[4] == 'cancelled' and finish_as_before(i) or nil
if not text then
  text = ARGV[3]
  finish(i, text, ARGV[4])
end
if ARGV[5] ~= '' then redis.call('HINCRBYFLOAT', H, 'reward_sum', ARGV[5]) end
if ARGV[7] == '1' then
  local h = redis.call('HMGET', H, 'streak_code', 'streak', 'breaker')
  local streak = h[1] == ARGV[6] and tonumber(h[2] or 0) + 1 or 1
  redis.call('HSET', H, 'streak_code', ARGV[6], 'streak', streak)
  local breaker = tonumber(h[3] or 0)
  if breaker > 0 and streak >= breaker and (state == 'open' or state == 'paused') then
    state = 'stopping'
    redis.call('HSET', H, 'state', state, 'stop_cause', 'failures', 'stop_code', ARGV[6])
    redis.call('HDEL', H, 'paused_by', 'pause_reason')
  end
elseif ARGV[4] ~= 'cancelled' then
  redis.call('HSET', H, 'streak', 0)
end
local is_last = redis.call('HLEN', R) >= tonumber(redis.call('HGET', H, 'total'))
return {'committed', text, is_last and 1 or 0, state}
"""
)

# ARGV: index, who and why as JSON.
CANCEL_TRIAL = (
    PRELUDE
    + """
local i = ARGV[1]
if not state or state == 'closed' or redis.call('HEXISTS', R, i) == 1 then return 'finished' end
redis.call('HSET', H, 'cancelled:' .. i, ARGV[2])
local lease = redis.call('ZSCORE', L, i)
if lease then
  redis.call('HSET', T .. i, 'cancelled', 1)
  return 'running'
end
finish_unrun(i, 'cancelled')
return 'waiting'
"""
)

RUNNING = (
    PRELUDE
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
# In a job with a budget they wait to be admitted instead.
OVERDUE = (
    PRELUDE
    + """
local out = {}
for _, i in ipairs(redis.call('ZRANGEBYSCORE', Q, '-inf', now - tonumber(ARGV[1]))) do out[#out + 1] = tonumber(i) end
for _, i in ipairs(redis.call('ZRANGEBYSCORE', L, '-inf', now)) do
  redis.call('ZREM', L, i)
  settle_lost(i)
  redis.call('HSET', T .. i, 'lost', 1)
  if has_budget() then wait_until(i, now) else out[#out + 1] = tonumber(i) end
end
for _, i in ipairs(out) do redis.call('ZADD', Q, now, i) end
return out
"""
)

# ARGV: index, fence.
LIVE = (
    PRELUDE
    + """
local lease = redis.call('ZSCORE', L, ARGV[1])
if not lease or tonumber(lease) <= now then return 0 end
return redis.call('HGET', T .. ARGV[1], 'fence') == ARGV[2] and 1 or 0
"""
)

SCRIPTS = {
    "CLAIM": CLAIM,
    "RENEW": RENEW,
    "PHASE": PHASE,
    "GIVE_BACK": GIVE_BACK,
    "COMMIT": COMMIT,
    "CANCEL_TRIAL": CANCEL_TRIAL,
    "RUNNING": RUNNING,
    "OVERDUE": OVERDUE,
    "LIVE": LIVE,
}
"""The steps by name."""
