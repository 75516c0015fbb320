#!/bin/sh
# Only the submission counts, wherever these tests run.
reward=0
if [ "$(cat /app/answer.txt)" = forty-two ] && [ -s /srv/out/notes.md ] && [ ! -e /app/optional.txt ]; then reward=1; fi
ls /app
echo $reward >/logs/verifier/reward.txt
