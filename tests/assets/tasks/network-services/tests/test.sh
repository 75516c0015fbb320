#!/bin/bash
expected="in the list
200
none"
if [ "$(cat /app/seen)" = "$expected" ] && [ "$(cat /seen-in-setup)" -gt 1 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
cat /app/seen
