#!/bin/sh
# The reward is 1 when every test passes; pytest ends with 0 or 1 when it ran at all.
python=python3
[ -x /opt/pytest/bin/python ] && python=/opt/pytest/bin/python

"$python" -m pytest -q /tests/test_summary.py
case $? in
    0) echo 1 > /logs/verifier/reward.txt ;;
    1) echo 0 > /logs/verifier/reward.txt ;;
    *) echo "pytest itself did not run: no verdict" >&2; exit 1 ;;
esac
