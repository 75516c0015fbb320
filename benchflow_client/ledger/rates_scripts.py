"""The rates of models as Lua, by the rules of `rates`.

Keys: 1 limits (hash: bucket -> JSON)  2 rates (hash: bucket|kind -> the moment, in ms, up to which it is used;
bucket|kind|kept -> the moment up to which times are kept)  3 closed (hash: account -> until when, in ms).
What was used stands by itself, a hash for every five seconds: bucket|kind -> how much.
"""

from __future__ import annotations

PACE = """
-- ms that one takes, and how far ahead of now they may be used; nothing = no limit.
local function pace(limit, kind)
  if kind == 'starts' then
    if not limit.starts_per_s then return nil end
    local interval = 1000 / limit.starts_per_s
    return interval, math.max(0, 1000 - interval)
  end
  local most = limit[kind .. '_per_min']
  if not most then return nil end
  local burst = math.floor(most / 60)
  local ahead = kind == 'requests' and math.max(0, burst - 1) or burst
  local interval = 60000 / (most - ahead)
  return interval, ahead * interval
end

-- The moment up to which a rate is used, and that up to which it is used or kept.
local function used_until(rates, field)
  local found = redis.call('HMGET', rates, field, field .. '|kept')
  local used = tonumber(found[1] or 0)
  return used, math.max(used, tonumber(found[2] or 0))
end
"""
"""What admission knows of them too."""

_CLOCK = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local KINDS, SLOT_MS, SLOTS = {'requests', 'tokens'}, 5000, 12
local slot = math.floor(now / SLOT_MS)
local function note_use(field, count)
  if count == 0 then return end
  redis.call('HINCRBY', 'bf:use:' .. slot, field, count)
  redis.call('PEXPIRE', 'bf:use:' .. slot, SLOT_MS * (SLOTS + 1))
end
"""

# ARGV: ms it can wait, tokens, 1 when it comes at the time kept for it, account, buckets.
# Returns ms to wait, what for, 1 when that is too long, and of what a time is kept.
TAKE = (
    _CLOCK
    + PACE
    + """
local tokens, is_kept = tonumber(ARGV[2]), ARGV[3] == '1'
local start, cause, last, taken = now, '', nil, {}
local closed = tonumber(redis.call('HGET', KEYS[3], ARGV[4]) or 0)
if closed > start then start, cause = closed, 'closed' end
for k = 5, #ARGV do
  local text = redis.call('HGET', KEYS[1], ARGV[k])
  local limit = text and cjson.decode(text) or {}
  for _, kind in ipairs(KINDS) do
    local interval, ahead = pace(limit, kind)
    if interval then
      local field, count = ARGV[k] .. '|' .. kind, kind == 'requests' and 1 or tokens
      local used, line = used_until(KEYS[2], field)
      local one = {kind = kind, field = field, count = count, used = used, line = is_kept and used or line, ms = count * interval}
      taken[#taken + 1] = one
      if one.line - ahead > start then start, cause, last = one.line - ahead, ARGV[k], one end
    end
  end
end
if start > now then
  local wait = math.ceil(start - now)
  if wait > tonumber(ARGV[1]) then return {wait, cause, 1, ''} end
  if not last or is_kept then return {wait, cause, 0, ''} end
  redis.call('HSET', KEYS[2], last.field .. '|kept', last.line + last.ms)
  return {wait, cause, 0, last.kind}
end
for _, one in ipairs(taken) do
  redis.call('HSET', KEYS[2], one.field, math.max(one.used, now) + one.ms)
  note_use(one.field, one.count)
end
return {0, '', 0, ''}
"""
)

# ARGV: how much of it the call was to take, bucket, kind.
LEAVE = (
    _CLOCK
    + PACE
    + """
local text = redis.call('HGET', KEYS[1], ARGV[2])
local interval = text and pace(cjson.decode(text), ARGV[3])
local field = ARGV[2] .. '|' .. ARGV[3] .. '|kept'
local kept = tonumber(redis.call('HGET', KEYS[2], field) or 0)
if interval and kept > 0 then
  redis.call('HSET', KEYS[2], field, math.max(1, kept - tonumber(ARGV[1]) * interval))
end
return 1
"""
)

# ARGV: tokens more than were counted, buckets.
SETTLE = (
    _CLOCK
    + PACE
    + """
local more = tonumber(ARGV[1])
for k = 2, #ARGV do
  local text = redis.call('HGET', KEYS[1], ARGV[k])
  local interval = text and pace(cjson.decode(text), 'tokens')
  local field = ARGV[k] .. '|tokens'
  if interval and redis.call('HEXISTS', KEYS[2], field) == 1 then
    for _, name in ipairs({field, field .. '|kept'}) do
      local at = tonumber(redis.call('HGET', KEYS[2], name) or 0)
      if at > 0 then redis.call('HSET', KEYS[2], name, math.max(at, more > 0 and now or 0) + more * interval) end
    end
    note_use(field, more)
  end
end
return 1
"""
)

_OPEN_AGAIN = """
local closed = {}
for k, value in ipairs(redis.call('HGETALL', KEYS[3])) do
  if k % 2 == 1 then closed[#closed + 1] = {value}
  else
    local left = tonumber(value) - now
    if left > 0 then closed[#closed][2] = left
    else redis.call('HDEL', KEYS[3], table.remove(closed)[1]) end
  end
end
"""

# ARGV: account, ms.
CLOSE = (
    _CLOCK
    + _OPEN_AGAIN
    + """
local until_ms = math.max(tonumber(redis.call('HGET', KEYS[3], ARGV[1]) or 0), now + tonumber(ARGV[2]))
redis.call('HSET', KEYS[3], ARGV[1], until_ms)
return 1
"""
)

# Returns limits as bucket, JSON, ... and pairs of account and ms.
KNOWN = (
    _CLOCK
    + _OPEN_AGAIN
    + """
return {redis.call('HGETALL', KEYS[1]), closed}
"""
)

# Returns pairs of bucket|kind and how much of it, over the last minute.
USED = (
    _CLOCK
    + """
local sums, out = {}, {}
for back = 0, SLOTS - 1 do
  local row = redis.call('HGETALL', 'bf:use:' .. (slot - back))
  for k = 1, #row, 2 do sums[row[k]] = (sums[row[k]] or 0) + tonumber(row[k + 1]) end
end
for field, sum in pairs(sums) do out[#out + 1] = {field, math.max(0, sum)} end
return out
"""
)

SCRIPTS = {"TAKE": TAKE, "LEAVE": LEAVE, "SETTLE": SETTLE, "CLOSE": CLOSE, "KNOWN": KNOWN, "USED": USED}
"""The steps by name."""
