#!/bin/sh
. "$(dirname "$0")/helper.sh"
echo "{\"reward\": $(check cmp -s built report/page)}" > /logs/verifier/reward.json
