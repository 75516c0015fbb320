#!/bin/sh
# The script agent of hello_agent.py for images without Python.
grep -q /app/note.md "$BENCHFLOW_INSTRUCTION" || { echo "This agent only knows how to write a release note."; exit 0; }

cat > /app/note.md <<'NOTE'
# Release 1.4.0

- BREAKING: the flag `--fast` is now called `--quick`.
- The first start is twice as quick.
- Broken settings are named with file and line.
NOTE

[ -n "$BENCHFLOW_EVENTS" ] && echo '{"type": "agent_message", "text": "Wrote /app/note.md."}' >> "$BENCHFLOW_EVENTS"
echo "Wrote /app/note.md."
