#!/usr/bin/env bash
# Import a minimal Debian as debian:bookworm-slim where no registry can be reached.
# A company (or CI) that inspects TLS puts its certificates into the image here, so that
# task Dockerfiles stay untouched.
set -euo pipefail
image=debian:bookworm-slim
docker image inspect "$image" >/dev/null 2>&1 && exit 0
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase bookworm "$root/fs" >/dev/null
bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
changes=(-c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin')
if [ -f "$bundle" ]; then
  install -Dm644 "$bundle" "$root/fs/etc/ssl/bf-ca-bundle.pem"
  mkdir -p "$root/fs/usr/local/share/ca-certificates"
  for certificate in /usr/local/share/ca-certificates/*.crt; do
    [ -f "$certificate" ] && install -m644 "$certificate" "$root/fs/usr/local/share/ca-certificates/"
  done
  for name in SSL_CERT_FILE PIP_CERT REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS GIT_SSL_CAINFO npm_config_cafile; do
    changes+=(-c "ENV $name=/etc/ssl/bf-ca-bundle.pem")
  done
fi
tar -C "$root/fs" -c . | docker import "${changes[@]}" - "$image" >/dev/null
