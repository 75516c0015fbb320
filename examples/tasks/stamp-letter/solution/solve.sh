#!/bin/sh
n=0
while :; do
    sum=$(printf 'letter-25 %s' "$n" | sha256sum)
    case $sum in
        000*) break ;;
    esac
    n=$((n + 1))
done
echo "$n ${sum%% *}" > /app/stamp.txt
