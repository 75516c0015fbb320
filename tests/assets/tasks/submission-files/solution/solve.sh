#!/bin/sh
set -e
mkdir -p /srv/out
echo forty-two > /app/answer.txt
echo "why forty-two" > /srv/out/notes.md
rm /app/optional.txt
echo "not part of the submission" > /app/scratch.txt
