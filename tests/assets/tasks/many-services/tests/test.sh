#!/bin/sh
if [ "$(cat /shared/book/page)" = "$EXPECTED" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
