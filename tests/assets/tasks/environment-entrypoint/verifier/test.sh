#!/bin/bash
exec 3<> /dev/tcp/localhost/9001 || exit 1
printf 'GET /health HTTP/1.0\r\n\r\n' >&3
read -r _ status _ <&3
if [ "$status" = 200 ] && [ "$(cat /app/answer.txt)" = "environment-entrypoint: from the image" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
