#!/bin/sh
if grep -qx finished out.txt; then score=1; else score=0; fi
echo "$score" > /logs/verifier/reward.txt
