"""Shell programs that start services inside a sandbox and ask whether they answer: POSIX sh only."""

from __future__ import annotations

from typing import Final

SERVICES_LOGS: Final = "/logs/services"
"""Folder in a sandbox for what services print, and for the exit codes of those that ended."""

START: Final = f"""
logs={SERVICES_LOGS}
mkdir -p "$logs" && chmod 755 "$logs" || exit 1
apart=
if command -v setsid >/dev/null 2>&1; then apart=setsid; fi
while [ $# -ge 3 ]; do
  name=$1 program=$2 command=$3
  shift 3
  if [ -n "$program" ] && ! command -v "$program" >/dev/null 2>&1; then continue; fi
  rm -f "$logs/$name.exit"
  ( $apart sh -c "$command"; echo $? >"$logs/$name.exit" ) </dev/null >"$logs/$name.log" 2>&1 &
  echo "$name"
done
"""
"""Three words a service: its name, its program, its command. Prints the names of those it started."""

PROBE: Final = f"""
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
for file in {SERVICES_LOGS}/*.exit; do
  [ -f "$file" ] || continue
  read -r code <"$file"
  name=${{file##*/}}
  [ "${{code:-0}}" = 0 ] || {{ echo "ended ${{name%.exit}} $code"; exit 1; }}
done
listens() {{
  hex=$(printf %04X "$1")
  cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | while read -r _ local _ state _; do
    case $local:$state in *:"$hex":0A) echo yes; break ;; esac
  done
}}
asks() {{
  if command -v curl >/dev/null 2>&1; then
    curl -fs -o /dev/null -m 5 "http://$1:$2$3"
  elif command -v wget >/dev/null 2>&1; then
    wget -q -O /dev/null -T 5 "http://$1:$2$3"
  elif command -v python3 >/dev/null 2>&1; then
    python3 -I -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' "http://$1:$2$3"
  elif command -v bash >/dev/null 2>&1; then
    bash -c 'exec 3<>"/dev/tcp/$1/$2" && printf "GET %s HTTP/1.0\\r\\nHost: %s\\r\\n\\r\\n" "$3" "$1" >&3 &&
      read -r -t 5 _ status _ <&3 && case $status in 2??|3??) ;; *) exit 1 ;; esac' bash "$@"
  else
    exit 96
  fi
}}
while [ $# -ge 3 ]; do
  if [ -z "$3" ]; then
    [ "$(listens "$2")" = yes ] || {{ echo "port $2"; exit 1; }}
  else
    asks "$1" "$2" "$3" >/dev/null 2>&1 || {{
      echo "http://$1:$2$3"
      exit 1
    }}
  fi
  shift 3
done
"""
"""Three words a question: host, port, path; without a path only whether somebody listens. Exit code 0 = all
answered; 96 = nothing here can ask. Prints what did not answer, or the service that ended with a failure."""

LAST_WORDS: Final = f"""
for file in {SERVICES_LOGS}/*.log; do
  [ -s "$file" ] && echo "${{file##*/}}:" && tail -n 5 "$file" | sed 's/^/  | /'
done
true
"""
"""Prints the end of what each service printed."""
