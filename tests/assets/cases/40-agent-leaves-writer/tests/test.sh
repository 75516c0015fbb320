#!/bin/sh
before=$(cat out.txt)
sleep 0.5
if [ "$(cat out.txt)" = "$before" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
