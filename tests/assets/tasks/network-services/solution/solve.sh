#!/bin/bash
ask() {
  timeout 50 bash -c 'exec 3<>"/dev/tcp/$0/80" && printf "GET / HTTP/1.1\r\nHost: $0\r\n\r\n" >&3 && head -n 1 <&3 | cut -d" " -f2' "$1" 2>/dev/null || echo none
}
{
  timeout 50 cat </dev/tcp/store/7000
  ask web.example
  ask other.example
} > /app/seen
