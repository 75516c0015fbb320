#!/bin/sh
# Prints made-up keys, put together here so that no whole key stands in a file of the repository.
repeat() { printf '%*s' "$2" '' | tr ' ' "$1"; }
keys() {
    echo "one sk-""ant-$(repeat F 24) end"
    echo "two sk-""proj-$(repeat F 24) end"
    echo "three AI""zaSy$(repeat F 33) end"
    echo "four AK""IA$(repeat F 16) end"
    echo "five dt""n_$(repeat f 32) end"
    echo "six x-api-key: $(repeat F 24) end"
}
words="ASIAPACIFIC sk-learn dtn_x stay readable"
keys
echo "$words"
env | sort
keys >&2
keys | while read -r line; do printf '{"type": "agent_message", "text": "%s"}\n' "$line"; done >> "$BENCHFLOW_EVENTS"
printf '{"type": "agent_message", "text": "%s %s"}\n' "$MY_API_KEY" "$words" >> "$BENCHFLOW_EVENTS"
env > /logs/agent/environment.txt
# A key on the border of the pieces in which a large file is read, and one behind it.
{ repeat . 4194290; printf ' '; keys; repeat . 100000; env; } > /logs/artifacts/large.txt
echo "$MY_API_KEY" > out.txt
echo finished >> out.txt
