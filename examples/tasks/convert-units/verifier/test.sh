#!/bin/sh
# The reward is the share of right answers, with the number of them beside it.
here=$(cd "$(dirname "$0")" && pwd)
answers=/app/answers.txt
[ -f "$answers" ] || answers=/dev/null

LC_ALL=C awk '
    NR == FNR { right[$1] = $2; total++; next }
    NF == 2 && ($1 in right) && !($1 in seen) && $2 ~ /^[-+]?[0-9]+(\.[0-9]*)?$/ {
        seen[$1] = 1
        difference = $2 - right[$1]
        limit = right[$1] * 0.001
        if (difference < 0) difference = -difference
        if (limit < 0) limit = -limit
        if (difference <= limit) correct++
    }
    END {
        printf "%d of %d answers are right\n", correct, total > "/dev/stderr"
        printf "{\"reward\": %.2f, \"metrics\": {\"right_answers\": %d}}\n", correct / total, correct
    }
' "$here/right_answers.txt" "$answers" > /logs/verifier/reward.json
