#!/bin/sh
. "$(dirname "$0")/helper.sh"
found=$(check test "$(cat built)" = "$EXPECTED
given")
echo "{\"reward\": $found, \"word\": $(check grep -qs "$SHARED" built)}" > /logs/verifier/reward.json
