"""The ledger's atomic steps on a job as Lua; keys and helpers are those of `scripts`."""

from __future__ import annotations

from benchflow_client.ledger.scripts import PRELUDE

# ARGV: job, number of lanes, seconds to the deadline or '', then field and value pairs of the header.
OPEN = (
    PRELUDE
    + """
if state then return 0 end
redis.call('HSET', H, 'state', 'open', 'width', ARGV[2], 'created_at', now)
if ARGV[3] ~= '' then redis.call('HSET', H, 'deadline_at', now + math.floor(tonumber(ARGV[3]) * 1000)) end
for i = 4, #ARGV, 2 do redis.call('HSET', H, ARGV[i], ARGV[i + 1]) end
redis.call('ZADD', J, now, ARGV[1])
redis.call('SADD', O, ARGV[1])
return 1
"""
)

# ARGV: receipts. A receipt is a JSON array: index, outcome, reward, code, attempts, seconds, cost, tokens.
RESTORE = (
    PRELUDE
    + """
local function text_of(value) return type(value) == 'number' and tostring(value) or '' end
for _, text in ipairs(ARGV) do
  local receipt = cjson.decode(text)
  leave_returned(receipt[1])
  if redis.call('HSETNX', R, receipt[1], text) == 1 then
    redis.call('HINCRBY', H, 'outcome:' .. receipt[2], 1)
    if type(receipt[3]) == 'number' then redis.call('HINCRBYFLOAT', H, 'reward_sum', receipt[3]) end
    -- One of which no attempt was made has neither started nor cost anything.
    if receipt[5] > 0 then
      settle(text_of(receipt[7]), text_of(receipt[8]), text_of(receipt[6]))
      redis.call('HINCRBY', H, 'admitted', 1)
    end
  end
end
redis.call('HSET', H, 'last_finished_at', now)
return #ARGV
"""
)

# Every trial of a paused job that is not finished waits.
WAIT_ALL = (
    PRELUDE
    + """
local total = tonumber(redis.call('HGET', H, 'total'))
for i = 0, total - 1 do redis.call('ZADD', lane_of(i), in_turn(i), i) end
for lane = 0, width - 1 do redis.call('HSET', H, 'cursor:' .. lane, total) end
redis.call('HSET', H, 'state', 'paused')
return total
"""
)

# ARGV: by, reason.
CANCEL = (
    PRELUDE
    + """
if state ~= 'open' and state ~= 'paused' and state ~= 'stopping' then return 0 end
redis.call('HSET', H, 'state', 'cancelling', 'cancelled_by', ARGV[1], 'cancel_reason', ARGV[2])
redis.call('HDEL', H, 'paused_by', 'pause_reason')
return 1
"""
)

# ARGV: by, reason.
PAUSE = (
    PRELUDE
    + """
if state ~= 'open' then return 0 end
redis.call('HSET', H, 'state', 'paused', 'paused_by', ARGV[1], 'pause_reason', ARGV[2])
return 1
"""
)

RESUME = (
    PRELUDE
    + """
if state ~= 'paused' then return 0 end
redis.call('HSET', H, 'state', 'open')
redis.call('HDEL', H, 'paused_by', 'pause_reason')
return 1
"""
)

# ARGV: job, group id, then the indices. A receipt is a JSON array: index, outcome, reward, ...
REOPEN = (
    PRELUDE
    + """
if state ~= 'closed' then
  -- A call whose answer was lost comes again.
  local h = redis.call('HMGET', H, 'group_id', 'reopened')
  return h[1] == ARGV[2] and tonumber(h[2] or 0) or 0
end
local count = 0
for k = 3, #ARGV do
  local text = redis.call('HGET', R, ARGV[k])
  if text then
    local receipt = cjson.decode(text)
    redis.call('HDEL', R, ARGV[k])
    redis.call('HINCRBY', H, 'outcome:' .. receipt[2], -1)
    if type(receipt[3]) == 'number' then redis.call('HINCRBYFLOAT', H, 'reward_sum', -receipt[3]) end
    redis.call('HDEL', H, 'cancelled:' .. ARGV[k])
    if receipt[5] > 0 and receipt[2] ~= 'cancelled' and receipt[2] ~= 'not_started' then
      redis.call('HSET', P, ARGV[k], text)
    end
    local i = tonumber(ARGV[k])
    -- One that was cancelled before its turn is fresh again.
    if math.floor(i / width) < tonumber(redis.call('HGET', H, 'cursor:' .. i % width) or 0) then
      redis.call('ZADD', lane_of(i), in_turn(i), i)
    end
    count = count + 1
  end
end
if count == 0 then return 0 end
redis.call('HSET', H, 'state', 'open', 'group_id', ARGV[2], 'reopened', count, 'streak', 0)
redis.call('HSET', H, 'first_fence', redis.call('HGET', H, 'last_fence') or 0)
redis.call('SADD', O, ARGV[1])
redis.call('HDEL', H, 'cancelled_by', 'cancel_reason', 'stop_cause', 'stop_code')
redis.call('HINCRBY', H, 'epoch', 1)
for _, key in ipairs({H, R, L, Q}) do redis.call('PERSIST', key) end
for lane = 0, width - 1 do redis.call('PERSIST', W .. lane) end
return count
"""
)

# ARGV: limit. Finishes trials that nobody holds, of a job that ends early; returns how many.
SWEEP = (
    PRELUDE
    + """
if state ~= 'cancelling' and state ~= 'stopping' then return 0 end
local outcome = state == 'cancelling' and 'cancelled' or 'not_started'
local limit, count = tonumber(ARGV[1]), 0
local places = {Q}
for lane = 0, width - 1 do places[#places + 1] = W .. lane end
for _, place in ipairs(places) do
  if count < limit then
    for _, i in ipairs(redis.call('ZRANGE', place, 0, limit - count - 1)) do
      finish_unrun(i, outcome)
      count = count + 1
    end
  end
end
local total = tonumber(redis.call('HGET', H, 'total'))
for lane = 0, width - 1 do
  local position = tonumber(redis.call('HGET', H, 'cursor:' .. lane) or 0)
  while count < limit and position * width + lane < total do
    local i = position * width + lane
    if redis.call('HEXISTS', R, i) == 0 then
      finish_unrun(i, outcome)
      count = count + 1
    end
    position = position + 1
  end
  redis.call('HSET', H, 'cursor:' .. lane, position)
end
return count
"""
)

# ARGV: seconds a closed job is remembered, job.
CLOSE = (
    PRELUDE
    + """
if not state or state == 'closed' then return 0 end
redis.call('HSET', H, 'state', 'closed')
redis.call('HDEL', H, 'paused_by', 'pause_reason')
redis.call('DEL', P)
redis.call('SREM', O, ARGV[2])
for _, key in ipairs({H, R, L, Q}) do redis.call('EXPIRE', key, ARGV[1]) end
for lane = 0, width - 1 do redis.call('EXPIRE', W .. lane, ARGV[1]) end
return 1
"""
)

PROGRESS = (
    PRELUDE
    + """
return {redis.call('HGETALL', H), redis.call('ZCARD', L), redis.call('ZCARD', Q)}
"""
)

# ARGV: budget as JSON or '', seconds to the deadline or ''.
SET_BUDGET = (
    PRELUDE
    + """
if not state then return 0 end
local old = redis.call('HGET', H, 'budget') or ''
old = old ~= '' and cjson.decode(old).deadline_s or nil
redis.call('HSET', H, 'budget', ARGV[1])
-- A deadline that runs goes on; that of an ended job starts anew.
if state ~= 'closed' and old and old == tonumber(ARGV[2]) then return 1 end
redis.call('HDEL', H, 'deadline_at')
if ARGV[2] ~= '' then redis.call('HSET', H, 'deadline_at', now + math.floor(tonumber(ARGV[2]) * 1000)) end
return 1
"""
)

# ARGV: job.
FORGET = (
    PRELUDE
    + """
local places = {L, Q}
for lane = 0, width - 1 do places[#places + 1] = W .. lane end
for _, zset in ipairs(places) do
  for _, i in ipairs(redis.call('ZRANGE', zset, 0, -1)) do redis.call('DEL', T .. i) end
  redis.call('DEL', zset)
end
redis.call('DEL', H, R, P)
redis.call('ZREM', J, ARGV[1])
redis.call('SREM', O, ARGV[1])
return 1
"""
)

SCRIPTS = {
    "OPEN": OPEN,
    "RESTORE": RESTORE,
    "WAIT_ALL": WAIT_ALL,
    "CANCEL": CANCEL,
    "PAUSE": PAUSE,
    "RESUME": RESUME,
    "REOPEN": REOPEN,
    "SWEEP": SWEEP,
    "CLOSE": CLOSE,
    "PROGRESS": PROGRESS,
    "SET_BUDGET": SET_BUDGET,
    "FORGET": FORGET,
}
"""The steps by name."""
