#!/bin/bash
# Asks its model once by the address and the token it was given, shows what it can see of keys, and works.
url=${BENCHFLOW_PROVIDER_BASE_URL#http://}
place=${url%%/*}
body="{\"model\":\"$BENCHFLOW_PROVIDER_MODEL\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"
exec 3<>"/dev/tcp/${place%%:*}/${place##*:}"
printf 'POST /%s/chat/completions HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s' \
  "${url#*/}" "$BENCHFLOW_PROVIDER_API_KEY" "${#body}" "$body" >&3
answer=$(cat <&3)
case $answer in *'All done.'*) echo finished >out.txt ;; esac
cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' | sort -u | while read -r line; do
  if [ "$(printf %s "${line#*=}" | sha256sum | cut -d ' ' -f 1)" = "$FORBIDDEN_DIGEST" ]; then echo "${line%%=*} is the key" >out.txt; fi
done
env
echo "$answer"
