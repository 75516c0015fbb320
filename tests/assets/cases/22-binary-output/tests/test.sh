#!/bin/bash
printf '\xfe\xff\x00\xc3\x28 bytes\n'
head -c 100000 /dev/urandom
printf '\xe2\x82'
echo 1 > /logs/verifier/reward.txt
