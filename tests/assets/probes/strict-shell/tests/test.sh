#!/bin/bash
cd "$BENCHFLOW_AGENT_CWD" || exit 1
if diff <(cat sum.txt) /tests/expected && grep -q '^42$' sum.txt && [ "$(head -c 64 sum.txt)" = 42 ]; then
  reward=1
else
  reward=0
fi
sleep 0.3
echo "$reward" > /logs/verifier/reward.txt
