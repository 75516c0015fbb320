#!/bin/bash
expected="web.example 200
deep.sub.web.example 200
sub.web.example none
other.example none
private.example 403"
if [ "$(cat /app/seen)" = "$expected" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
cat /app/seen
