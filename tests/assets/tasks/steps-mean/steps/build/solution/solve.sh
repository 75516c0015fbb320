#!/bin/sh
[ ! -e /app/from-workdir ] && echo built > /app/state
cp /instruction.md /logs/agent/instruction.md
