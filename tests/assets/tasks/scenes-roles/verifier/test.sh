#!/bin/sh
printf '%s\n' 'one calm' two 'three after 2 lines, 0 left, mood none' >/tmp/expected.txt
cat lines.txt
if cmp -s lines.txt /tmp/expected.txt; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
