#!/bin/sh
# One test for each file, reported in CTRF.
passed=0 tests=
for name in one two three; do
  status=failed
  if [ -e "$name" ]; then status=passed passed=$((passed + 1)); fi
  tests="$tests${tests:+, }{\"name\": \"makes $name\", \"status\": \"$status\", \"duration\": 1}"
done
echo "{\"results\": {\"summary\": {\"tests\": 3, \"passed\": $passed, \"failed\": $((3 - passed))}, \"tests\": [$tests]}}" \
  >/logs/verifier/ctrf.json
if [ "$passed" = 3 ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
