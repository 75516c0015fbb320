#!/bin/sh
# The sum is made again from the number, so a stamp cannot be a guess.
smallest=1689
reward=0
if [ -f /app/stamp.txt ]; then
    read -r number sum rest < /app/stamp.txt
    proof=$(printf 'letter-25 %s' "$number" | sha256sum)
    if [ "$number" = "$smallest" ] && [ "$sum" = "${proof%% *}" ] && [ -z "$rest" ]; then
        reward=1
    else
        echo "stamp '$number' with sum '$sum' is not the smallest one"
    fi
else
    echo "/app/stamp.txt does not exist"
fi
echo "$reward" > /logs/verifier/reward.txt
