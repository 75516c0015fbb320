#!/bin/sh
# The image has a program the agent's has not; the workspace stands where the agent's did and is only its own.
reward=0
if [ "$(pwd)" = /app ] && [ ! -e extra ] && [ "$ONLY_HERE" = judge ] && judge state; then reward=1; fi
echo $reward >/logs/verifier/reward.txt
