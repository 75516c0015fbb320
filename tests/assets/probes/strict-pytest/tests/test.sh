#!/bin/bash
cd "$BENCHFLOW_AGENT_CWD" || exit 1
if python3 -m pytest -q --house /tests/test_answer.py; then
  reward=1
else
  reward=0
fi
sleep 0.3
echo "$reward" > /logs/verifier/reward.txt
