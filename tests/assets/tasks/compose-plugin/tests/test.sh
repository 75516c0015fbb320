#!/bin/bash
cat /app/answer.txt
backlog=$(cat /proc/sys/net/core/somaxconn)
if [ "$(cat /app/answer.txt) $backlog" = "77 0 5555 5$ hello sesame  333" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
