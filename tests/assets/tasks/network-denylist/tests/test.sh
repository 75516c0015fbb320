#!/bin/bash
expected="http://web.example/page 200
http://web.example/answers/1 403
http://blocked.web.example/page none
https://web.example/page 200
https://web.example/answers 403"
if [ "$(cat /app/seen)" = "$expected" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
cat /app/seen
