"""Admission as Lua: one decision for the whole fleet, by the rules of `admission`.

Keys: 1 open jobs (set)  2 limits (hash: bucket -> JSON)  3 rates (hash: bucket|kind -> the moment,
in ms, up to which its starts are used up: the theoretical arrival time of the generic cell rate
algorithm, ITU-T I.371). Requests and tokens of models are used by `rates_scripts`; here they are
only read. Keys of jobs are made of their names: one server holds them all.
"""

from __future__ import annotations

from benchflow_client.ledger.admission import SMALL_JOB_BOOST, SMALL_JOB_ROUNDS
from benchflow_client.ledger.rates_scripts import PACE

_RULES = (
    PACE
    + """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local FIELDS = {'state', 'queue', 'total', 'concurrency', 'weight', 'priority', 'width', 'lanes', 'budget',
  'created_at', 'group_id', 'admitted', 'retrying', 'spent_usd', 'spent_tokens', 'spent_s', 'max_usd',
  'max_tokens', 'max_s', 'settled', 'deadline_at', 'served'}
local limits = {}
for k, value in ipairs(redis.call('HGETALL', KEYS[2])) do
  if k % 2 == 1 then limits[#limits + 1] = value else limits[limits[#limits]] = cjson.decode(value) end
end
local has_limits = #limits > 0
local live, wake = {}, 0

local function wake_at(at) if wake == 0 or at < wake then wake = at end end

local function load(name)
  local base = 'bf:{' .. name .. '}'
  local values, j = redis.call('HMGET', base, unpack(FIELDS)), {name = name, base = base}
  for k, field in ipairs(FIELDS) do j[field] = values[k] or nil end
  if not j.state then return nil end
  for _, field in ipairs({'total', 'concurrency', 'weight', 'priority', 'width', 'created_at', 'admitted', 'retrying',
    'spent_usd', 'spent_tokens', 'spent_s', 'max_usd', 'max_tokens', 'max_s', 'settled', 'deadline_at',
    'served'}) do
    j[field] = tonumber(j[field] or nil)
  end
  j.lanes = cjson.decode(j.lanes or '[[]]')
  j.budget = j.budget and j.budget ~= '' and cjson.decode(j.budget) or nil
  j.running, j.released = redis.call('ZCARD', base .. ':leases'), redis.call('ZCARD', base .. ':released')
  j.in_flight = j.running + j.released
  j.waiting = j.total - j.in_flight - redis.call('HLEN', base .. ':receipts')
  j.cursors = {}
  return j
end

local function buckets_of(j, lane)
  -- The kind of sandbox is what stands before a queue's dot.
  local names = {'sandbox:' .. string.match(j.queue, '^[^.]*')}
  for _, name in ipairs(j.lanes[lane + 1] or {}) do names[#names + 1] = name end
  return names
end

local function count_live(j)
  for _, zset in ipairs({':leases', ':released'}) do
    for _, i in ipairs(redis.call('ZRANGE', j.base .. zset, 0, -1)) do
      for _, name in ipairs(buckets_of(j, tonumber(i) % j.width)) do live[name] = (live[name] or 0) + 1 end
    end
  end
end

local function limit_on(j, lane)
  if not has_limits then return nil end
  for _, name in ipairs(buckets_of(j, lane)) do
    local limit = limits[name]
    if limit then
      if limit.live and (live[name] or 0) >= limit.live then return 'limit ' .. name end
      local free_at = 0
      for _, kind in ipairs({'starts', 'requests', 'tokens'}) do
        local interval, ahead = pace(limit, kind)
        if interval then
          local _, line = used_until(KEYS[3], name .. '|' .. kind)
          free_at = math.max(free_at, line - ahead)
        end
      end
      if free_at > now then
        wake_at(free_at)
        return 'limit ' .. name
      end
    end
  end
  return nil
end

local function take_limits(j, lane)
  for _, name in ipairs(buckets_of(j, lane)) do
    live[name] = (live[name] or 0) + 1
    local interval = limits[name] and pace(limits[name], 'starts')
    if interval then
      local field = name .. '|starts'
      local used = math.max(tonumber(redis.call('HGET', KEYS[3], field) or 0), now)
      redis.call('HSET', KEYS[3], field, used + interval)
    end
  end
end

-- What a cap has to say: spent and reserved may not reach it. Nothing settled = the first trial goes alone.
local CAPS = {
  {'cost_usd', 'spent_usd', 'max_usd', 'trial_cost_usd'},
  {'tokens', 'spent_tokens', 'max_tokens', 'trial_tokens'},
  {'sandbox_s', 'spent_s', 'max_s', ''},
}
local function budget_on(j)
  if j.deadline_at then
    if now >= j.deadline_at then return 'deadline' end
    wake_at(j.deadline_at)
  end
  if not j.budget then return nil end
  for _, names in ipairs(CAPS) do
    local cap = j.budget[names[1]]
    if cap then
      local each = j.budget[names[4]] or ((j.settled or 0) > 0 and (j[names[3]] or 0)) or cap
      if (j[names[2]] or 0) + j.in_flight * each >= cap then return 'budget ' .. names[1] end
    end
  end
  return nil
end

local function cursor(j, lane)
  if not j.cursors[lane] then
    j.cursors[lane] = tonumber(redis.call('HGET', j.base, 'cursor:' .. lane) or 0)
  end
  return j.cursors[lane]
end

-- The next trial of a lane that never waited, skipping those that are finished.
local function fresh(j, lane)
  local position = cursor(j, lane)
  while position * j.width + lane < j.total do
    local i = position * j.width + lane
    if redis.call('HEXISTS', j.base .. ':receipts', i) == 0 then
      j.cursors[lane] = position
      return i
    end
    position = position + 1
  end
  j.cursors[lane] = position
  return nil
end

local function trials_on(j)
  local cap = j.budget and j.budget.trials
  return cap and (j.admitted or 0) >= cap
end

local function is_new(j, i) return redis.call('HEXISTS', j.base .. ':t:' .. i, 'attempts') == 0 end

-- The first due trial of those that a lane got back; when no new ones may start, of those that are not new.
local function returned(j, lane, has_new)
  if not has_new and (j.retrying or 0) <= 0 then return nil end
  local rows = redis.call('ZRANGE', j.base .. ':returned:' .. lane, 0, has_new and 0 or -1, 'WITHSCORES')
  for k = 1, #rows, 2 do
    if has_new or not is_new(j, rows[k]) then
      local at = tonumber(rows[k + 1])
      if at <= now then return tonumber(rows[k]) end
      wake_at(at)
      return nil
    end
  end
  return nil
end

-- How many trials of a lane never waited and are not finished; only a person's cancelling finishes one there.
local function count_fresh(j, lane)
  local first = cursor(j, lane)
  local count = math.max(0, math.floor((j.total - 1 - lane) / j.width) + 1 - first)
  if count == 0 then return 0 end
  for _, field in ipairs(redis.call('HKEYS', j.base)) do
    local i = tonumber(string.match(field, '^cancelled:(%d+)$'))
    if i and i % j.width == lane and i >= first * j.width and redis.call('HEXISTS', j.base .. ':receipts', i) == 1 then
      count = count - 1
    end
  end
  return count
end

-- The trial of a job that would start next, or nothing and why.
local function choose(j)
  local why = budget_on(j)
  if why then return nil, why end
  if j.in_flight >= j.concurrency then return nil, 'concurrency' end
  local has_new = not trials_on(j)
  local best, from_returned
  for lane = 0, j.width - 1 do
    local blocked = limit_on(j, lane)
    if blocked then why = why or blocked
    else
      local i = returned(j, lane, has_new)
      if i and (not best or not from_returned or i < best) then best, from_returned = i, true end
      if not i and not has_new then why = 'budget trials'
      elseif not i and not from_returned then
        i = fresh(j, lane)
        if i and (not best or i < best) then best = i end
      end
    end
  end
  if not best then return nil, why or 'retry delay' end
  return best, nil
end

local function share(j, room)
  local unfinished = j.waiting + j.in_flight
  local boost = unfinished <= room * @ROUNDS@ and @BOOST@ or 1
  return j.in_flight / (j.weight * boost)
end

-- Whether a job deserves the next place more than another.
local function goes_before(a, b, room)
  if a.priority ~= b.priority then return a.priority > b.priority end
  local left, right = share(a, room), share(b, room)
  if left ~= right then return left < right end
  local mine, theirs = a.served or 0, b.served or 0
  if mine ~= theirs then return mine < theirs end
  if a.created_at ~= b.created_at then return a.created_at < b.created_at end
  return a.name < b.name
end
""".replace("@ROUNDS@", str(SMALL_JOB_ROUNDS)).replace("@BOOST@", str(SMALL_JOB_BOOST))
)

# ARGV: queue, messages in flight at most, trials to take at most, the only job to take from or ''.
# Returns trials as job, group id, index; jobs that stopped; ms until time alone admits more, 0 = no such.
ADMIT = (
    _RULES
    + """
local queue, room, limit, only = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local jobs, out, stopped, in_flight, turn = {}, {}, {}, 0, 0
for _, name in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local j = load(name)
  if j then
    if has_limits then count_live(j) end
    if j.queue == queue then
      in_flight, turn = in_flight + j.in_flight, math.max(turn, j.served or 0)
      if j.state == 'open' and j.waiting > 0 then jobs[#jobs + 1] = j end
    end
  end
end

-- A budget that nothing in flight can free any more ends the job.
local function stop(j, why)
  local is_over = why == 'deadline' or (j.in_flight == 0 and string.sub(why, 1, 7) == 'budget ')
  if why == 'budget trials' and (j.retrying or 0) > 0 then is_over = false end
  if not is_over then return end
  redis.call('HSET', j.base, 'state', 'stopping', 'stop_cause', why)
  stopped[#stopped + 1] = j.name
end

local function start(j, i)
  local lane = i % j.width
  if redis.call('ZREM', j.base .. ':returned:' .. lane, i) == 1 then
    if is_new(j, i) then j.admitted = redis.call('HINCRBY', j.base, 'admitted', 1)
    else j.retrying = redis.call('HINCRBY', j.base, 'retrying', -1) end
  else
    j.cursors[lane] = (i - lane) / j.width + 1
    redis.call('HSET', j.base, 'cursor:' .. lane, j.cursors[lane])
    j.admitted = redis.call('HINCRBY', j.base, 'admitted', 1)
  end
  redis.call('ZADD', j.base .. ':released', now, i)
  redis.call('HSET', j.base, 'served', j.served)
  take_limits(j, lane)
  out[#out + 1] = {j.name, j.group_id, i}
end

while #jobs > 0 and #out < limit do
  local at = 1
  for k = 2, #jobs do if goes_before(jobs[k], jobs[at], room) then at = k end end
  local j = jobs[at]
  local i, why = choose(j)
  if i and in_flight >= room then break end
  if i then
    turn = turn + 1
    j.served = turn
    if only == '' or only == j.name then start(j, i) end
    j.in_flight, j.waiting, in_flight = j.in_flight + 1, j.waiting - 1, in_flight + 1
    if j.waiting == 0 then table.remove(jobs, at) end
  else
    stop(j, why)
    table.remove(jobs, at)
  end
end
for _, j in ipairs(jobs) do
  local why = budget_on(j)
  if why then stop(j, why) end
end
return {out, stopped, wake > 0 and math.max(1, math.ceil(wake - now)) or 0}
"""
)

# ARGV: job, messages in flight at most on its queue. Returns pairs of cause and count.
WAITING = (
    _RULES
    + """
local j, room = load(ARGV[1]), tonumber(ARGV[2])
if not j or j.state == 'closed' then return {} end
local in_flight = 0
for _, name in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local other = load(name)
  if other then
    if has_limits then count_live(other) end
    if other.queue == j.queue then in_flight = in_flight + other.in_flight end
  end
end
local counts, left = {}, j.waiting
local function add(why, count)
  count = math.min(count, left)
  if count > 0 then counts[why] = (counts[why] or 0) + count end
  left = left - math.max(count, 0)
end
local whole = j.state == 'paused' and 'paused' or j.state ~= 'open' and 'stopping' or budget_on(j)
if j.released > 0 then counts['slots'] = j.released end
if whole then add(whole, left) end
for lane = 0, j.width - 1 do
  if left > 0 then
    local key = j.base .. ':returned:' .. lane
    add('retry delay', redis.call('ZCOUNT', key, '(' .. now, '+inf'))
    local fresh_ones = count_fresh(j, lane)
    local why = j.in_flight >= j.concurrency and 'concurrency' or limit_on(j, lane)
    if why then add(why, redis.call('ZCOUNT', key, '-inf', now) + fresh_ones)
    elseif trials_on(j) then add('budget trials', fresh_ones) end
  end
end
add('slots', left)
local out = {}
for why, count in pairs(counts) do out[#out + 1] = {why, count} end
return out
"""
)

# Returns pairs of bucket and trials in flight.
IN_FLIGHT = (
    _RULES
    + """
for _, name in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local j = load(name)
  if j then count_live(j) end
end
local out = {}
for name, count in pairs(live) do out[#out + 1] = {name, count} end
return out
"""
)

SCRIPTS = {"ADMIT": ADMIT, "WAITING": WAITING, "IN_FLIGHT": IN_FLIGHT}
"""The steps by name."""
