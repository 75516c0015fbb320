#!/bin/bash
seen=$(cat /srv/seen /srv/again/deep/note /app/deep/note /app/word | tr '\n' ' ')
echo "$seen"
if [ "$seen" = "deep first first open-sesame " ] && [ ! -e /app/link ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
