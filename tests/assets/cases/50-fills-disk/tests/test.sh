#!/bin/sh
# One file as large as all the sandbox may hold is as far as it went.
[ "$(stat -c %s fill)" -eq 33554432 ] && score=1 || score=0
echo "$score" > /logs/verifier/reward.txt
