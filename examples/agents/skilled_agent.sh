#!/bin/sh
# An agent without a model that can use one skill: it looks for a script for dates among its skills.
# It says what it does as an event, and its answer is what it prints.
date=$(grep -o '[0-9]\{4\}-[0-9]\{2\}-[0-9]\{2\}' "$BENCHFLOW_INSTRUCTION" | head -n 1)
script=$HOME/.agents/skills/house-dates/scripts/house-date.sh
if [ -x "$script" ]; then
  printf '{"type": "tool_call", "name": "shell", "command": "%s %s"}\n' "$script" "$date" >>"$BENCHFLOW_EVENTS"
  "$script" "$date"
else
  echo "I would write $date, but nobody told me how this house does it."
fi
