#!/bin/bash
read -r word < /dev/tcp/the_clock/7007
if [ "$word" = "midnight utc" ] && [ "$(cat /app/answer.txt)" = "$word" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
