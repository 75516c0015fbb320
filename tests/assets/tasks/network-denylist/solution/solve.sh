#!/bin/bash
plain() {
  timeout 50 bash -c 'exec 3<>"/dev/tcp/$0/80" && printf "GET $1 HTTP/1.1\r\nHost: $0\r\n\r\n" >&3 && head -n 1 <&3 | cut -d" " -f2' "$1" "$2" 2>/dev/null || echo none
}
encrypted() {
  if command -v curl >/dev/null; then
    curl --silent --max-time 50 --output /dev/null --write-out '%{http_code}' "https://$1$2"
  else  # the one program of a slim Debian that speaks TLS
    said=$(/usr/lib/apt/apt-helper download-file "https://$1$2" "/tmp/page-$$" 2>&1) && echo 200 || grep -o 403 <<<"$said" | head -n 1
  fi
}
{
  echo "http://web.example/page $(plain web.example /page)"
  echo "http://web.example/answers/1 $(plain web.example /answers/1)"
  echo "http://blocked.web.example/page $(plain blocked.web.example /page)"
  echo "https://web.example/page $(encrypted web.example /page)"
  echo "https://web.example/answers $(encrypted web.example /answers)"
} > /app/seen
