#!/bin/bash
if [ "$(cat /app/answer.txt)" = "seed for store by 1000" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
