#!/bin/sh
printf '%s\n' start start 'first wish' start 'second wish' 8 'size: [1, 2]' >/tmp/expected.txt
cat notes.txt watched.txt
echo 'secret of the tests' >/logs/verifier/secret.txt
if cmp -s notes.txt /tmp/expected.txt && [ ! -s watched.txt ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
