#!/bin/sh
# Runs where the agent has never been: only its workspace, its artifacts and nothing it installed are here.
fail() { echo "$1"; echo 0 >/logs/verifier/reward.txt; exit 0; }
[ "$(pwd)" = /app ] || fail "workspace $(pwd)"
[ "$(cat sum.txt)" = 42 ] || fail "sum"
[ ! -e draft.txt ] || fail "draft.txt came back"
[ "$(cat 'a name.txt')" = kept ] || fail "a name.txt"
[ "$(readlink link)" = numbers.txt ] || fail "link"
[ "$(cat /srv/report.txt)" = 42 ] || fail "declared artifact"
[ "$(cat /logs/artifacts/own.txt)" = own ] || fail "conventional artifact"
if command -v sum-of >/dev/null 2>&1 || [ -e /opt/left-behind ]; then fail "something outside the workspace came along"; fi
echo 1 >/logs/verifier/reward.txt
