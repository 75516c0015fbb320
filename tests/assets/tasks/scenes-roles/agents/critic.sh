#!/bin/sh
# Judges the draft, and notes whether anything the writer started is still running.
left=0
for words in /proc/[0-9]*/cmdline; do
  if [ "$(tr '\0' ' ' 2>/dev/null <"$words")" = "sleep 600 " ]; then left=$((left + 1)); fi
done
grep -qx 'Judge the lines.' "$BENCHFLOW_INSTRUCTION" || exit 3
echo "$(wc -l <lines.txt) lines, $left left, mood ${MOOD-none}" >review.txt
echo '{"type": "agent_message", "text": "judged"}' >>"$BENCHFLOW_EVENTS"
