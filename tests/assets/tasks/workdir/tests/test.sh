#!/bin/sh
if [ "$(cat here)" = "/made/for the/task" ] && [ "$(pwd)" = "/made/for the/task" ]; then echo 1; else echo 0; fi \
  > /logs/verifier/reward.txt
