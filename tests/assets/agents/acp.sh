#!/bin/sh
# Speaks the Agent Client Protocol and does what $ACT says; needs nothing but a POSIX shell.
say() { printf '%s\n' "$1"; }
reply() { say "{\"jsonrpc\":\"2.0\",\"id\":$1,\"result\":$2}"; }
fail() { say "{\"jsonrpc\":\"2.0\",\"id\":$1,\"error\":{\"code\":-32603,\"message\":\"$2\"}}"; }
update() { say "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"s1\",\"update\":$1}}"; }
text() { update "{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"$1\"}}"; }
tool() { update "{\"sessionUpdate\":\"$1\",\"toolCallId\":\"$2\",\"title\":\"shell\",\"kind\":\"execute\",\"status\":\"$3\"}"; }
id_of() { printf '%s' "$1" | sed -n 's/.*"id":\([0-9]*\).*/\1/p'; }
letters() { head -c "$1" /dev/zero | tr '\0' x; }
prompted=0 mode=ask

act() {
  prompted=$((prompted + 1))
  case ${ACT:-work} in
    work)
      tool tool_call t1 in_progress
      echo finished >out.txt
      tool tool_call_update t1 completed
      text done
      ;;
    big)
      for size in 65535 65536 65537 200000 5000000; do text "$(letters $size)"; done
      echo finished >out.txt
      ;;
    noise)
      say 'DEBUG the tool ended'
      say '{"level":"info","text":"no message of the protocol"}'
      text hi
      say '{half a message'
      echo finished >out.txt
      ;;
    count) echo "$prompted $2" >>out.txt; text "$prompted" ;;
    late) text working; echo finished >out.txt; sleep 300 ;;
    survivor)
      text working
      setsid sh -c 'trap "" TERM HUP; n=0; while :; do n=$((n + 1)); echo $n >out.txt; sleep 0.05; done' &
      trap '' TERM
      sleep 300
      ;;
    tool-hangs) tool tool_call t1 in_progress; sleep 300 ;;
    dies) text working; echo 'last words' >&2; exit 7 ;;
    dies-with-child) text working; sleep 300 & exit 7 ;;
    asks-nobody) [ "$mode" = free ] && echo finished >out.txt; text done ;;
    silent) reply "$1" '{"stopReason":"end_turn"}'; return ;;
    limited) echo x >>attempts.txt; fail "$1" 'provider rate limited (HTTP 429), retry-after: 1'; return ;;
    confused) fail "$1" 'something else went wrong'; return ;;
    secrets) text "the key is $BOT_TOKEN_FIRST"; text "$BOT_TOKEN_REST. readable"; echo "$BOT_TOKEN" >&2; echo finished >out.txt ;;
    permission)
      say '{"jsonrpc":"2.0","id":900,"method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"t1"},"options":[{"optionId":"no","name":"No","kind":"reject_once"},{"optionId":"yes","name":"Yes","kind":"allow_once"}]}}'
      read -r answer
      say '{"jsonrpc":"2.0","id":901,"method":"fs/read_text_file","params":{"sessionId":"s1","path":"/etc/passwd"}}'
      read -r refusal
      case "$answer$refusal" in *'"optionId":"yes"'*-32601*) echo finished >out.txt ;; esac
      text asked
      ;;
  esac
  reply "$1" '{"stopReason":"end_turn","usage":{"inputTokens":11,"outputTokens":7,"totalTokens":18}}'
}

if [ "$ACT" = noise ]; then
  printf 'npm notice New version\n\033[32mWelcome\033[0m\n\n{not json\n'
fi
if [ "$ACT" = never-ready ]; then sleep 300; fi
if [ "$ACT" = not-there ]; then exit 3; fi
while read -r line; do
  case $line in
    *'"method":"initialize"'*) reply "$(id_of "$line")" '{"protocolVersion":1,"agentCapabilities":{},"agentInfo":{"name":"tiny","version":"4.2"}}' ;;
    *'"method":"session/new"'*)
      modes='{"currentModeId":"ask","availableModes":[{"id":"ask","name":"Ask"},{"id":"bypassPermissions","name":"Go"}]}'
      reply "$(id_of "$line")" "{\"sessionId\":\"s1\",\"modes\":$modes${OFFERS:+,$OFFERS}}"
      ;;
    *'"method":"session/set_mode"'*'"modeId":"bypassPermissions"'*)
      mode=free
      reply "$(id_of "$line")" null
      ;;
    *'"method":"session/set_config_option"'* | *'"method":"session/set_model"'*)
      printf '%s\n' "$line" >>asked.txt
      reply "$(id_of "$line")" '{}'
      ;;
    *'"method":"session/prompt"'*) act "$(id_of "$line")" "$(printf '%s' "$line" | sed 's/.*"text":"\([^"]*\)".*/\1/')" ;;
  esac
done
