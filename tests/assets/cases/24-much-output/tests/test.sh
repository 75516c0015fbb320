#!/bin/bash
head -c 60000000 /dev/zero
printf '\nTHE-END\n'
echo 1 > /logs/verifier/reward.txt
