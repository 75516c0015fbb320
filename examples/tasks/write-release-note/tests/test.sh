#!/bin/sh
# One rule a line of output; the reward is 1 when every rule holds.
note=/app/note.md
reward=1

rule() { # NAME, then a command that must succeed
    name=$1
    shift
    if "$@"; then
        echo "ok    $name"
    else
        echo "FAIL  $name"
        reward=0
    fi
}

count_is() { # NUMBER PATTERN
    [ "$(grep -c -e "$2" "$note")" -eq "$1" ]
}

if [ ! -f "$note" ]; then
    echo "FAIL  $note does not exist"
    echo 0 > /logs/verifier/reward.txt
    exit 0
fi

rule "five lines in all" [ "$(awk 'END { print NR }' "$note")" -eq 5 ]
rule "title" [ "$(sed -n 1p "$note")" = "# Release 1.4.0" ]
rule "empty second line" [ -z "$(sed -n 2p "$note")" ]
rule "three bullets" count_is 3 '^- .'
rule "no line above 72 characters" awk 'length($0) > 72 { exit 1 }' "$note"
rule "one breaking change" count_is 1 '^- BREAKING: .'
rule "both names of the flag" count_is 1 '^- BREAKING: .*--fast.*--quick'

echo "$reward" > /logs/verifier/reward.txt
