#!/bin/bash
set -eu
echo checking
test -e out.txt
if [ $? = 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
