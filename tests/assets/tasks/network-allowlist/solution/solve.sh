#!/bin/bash
ask() {
  timeout 50 bash -c 'exec 3<>"/dev/tcp/$0/80" && printf "GET /page HTTP/1.1\r\nHost: $0\r\n\r\n" >&3 && head -n 1 <&3 | cut -d" " -f2' "$1" 2>/dev/null || echo none
}
for name in web.example deep.sub.web.example sub.web.example other.example private.example; do
  echo "$name $(ask "$name")"
done > /app/seen
