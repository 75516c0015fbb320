#!/bin/bash
echo "in $(pwd) by $(readlink /proc/$$/exe)"
ls /logs/verifier
if cmp /shared/answer.txt /tests/word.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
