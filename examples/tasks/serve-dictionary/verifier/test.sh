#!/bin/sh
# Half for the written answers, half for the service itself, which is started afresh here:
# what the agent left running may be gone, and must not be trusted.
here=$(cd "$(dirname "$0")" && pwd)
desk=$(mktemp -d)
answers=0
service=0

if [ -f /app/answers.txt ] && diff "$here/expected_answers.txt" /app/answers.txt; then
    answers=1
else
    echo "the answers are missing or wrong"
fi

ask() { # WORD: prints the answer, or fails after five seconds
    timeout 5 sh -c 'echo "$1" > "$2/ask" && IFS= read -r line < "$2/answer" && echo "$line"' ask "$1" "$desk"
}

pipes_are_there() {
    tries=0
    while [ ! -p "$desk/ask" ] || [ ! -p "$desk/answer" ]; do
        tries=$((tries + 1))
        [ "$tries" -gt 50 ] && return 1
        sleep 0.1
    done
}

if [ -x /app/dictionary ]; then
    printf 'kettle=boils water\nsaddle=seat on a horse\n' > "$desk/words.txt"
    /app/dictionary "$desk/words.txt" "$desk" </dev/null >/dev/null 2>&1 &
    pid=$!
    if pipes_are_there \
        && [ "$(ask saddle)" = "seat on a horse" ] \
        && [ "$(ask anchor)" = "unknown" ] \
        && [ "$(ask kettle)" = "boils water" ]; then
        service=1
    else
        echo "the service gives wrong answers or none"
    fi
    kill -9 "$pid" 2>/dev/null
else
    echo "/app/dictionary is not an executable file"
fi
rm -rf "$desk"

case $answers$service in
    11) echo 1 ;;
    00) echo 0 ;;
    *) echo 0.5 ;;
esac > /logs/verifier/reward.txt
