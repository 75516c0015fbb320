#!/bin/bash
reward=0
for _ in $(seq 300); do
  [ -s /post/seen.txt ] && break
  sleep 0.1
done
if [ "$(cat /app/answer.txt)" = "dear reader" ] && [ "$(cat /post/seen.txt)" = "thank you" ] && [ "$(cat /etc/seal.txt)" = wax ]; then
  reward=1
fi
if getent hosts example.com || touch /papers/x 2> /dev/null; then reward=0; fi
echo "$reward" > /logs/verifier/reward.txt
