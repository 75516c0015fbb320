#!/bin/sh
# Start Redis or Valkey with an append-only file and a password, and with one user for each
# role whose password is given. Passwords never stand on a command line or in the image.
set -eu
umask 077

: "${BENCHFLOW_REDIS_PASSWORD:?is not set: it is the password of the default user}"
here=$(cd "$(dirname "$0")" && pwd)
data=${BENCHFLOW_REDIS_DATA_DIR:-/data}
run=$data/run

server=$(command -v valkey-server || command -v redis-server) || {
  echo "error  Neither valkey-server nor redis-server is on PATH." >&2
  exit 1
}

hash_of() { # PASSWORD
  printf %s "$1" | sha256sum | cut -d ' ' -f 1
}

hash_or_nothing() { # PASSWORD: an empty one gives no hash, and so no user
  if [ -n "$1" ]; then hash_of "$1"; fi
}

mkdir -p "$run"
{
  echo "user default on #$(hash_of "$BENCHFLOW_REDIS_PASSWORD") ~* &* +@all"
  awk '/^#/ || !NF { next } /^user/ { if (line) print line; line = $0; next } { sub(/^ */, " "); line = line $0 } END { print line }' \
    "$here/users.acl" |
    sed -e "s/#CLIENT_HASH/#$(hash_or_nothing "${BENCHFLOW_REDIS_CLIENT_PASSWORD:-}")/" \
      -e "s/#WORKER_HASH/#$(hash_or_nothing "${BENCHFLOW_REDIS_WORKER_PASSWORD:-}")/" \
      -e "s/#FLOWER_HASH/#$(hash_or_nothing "${BENCHFLOW_REDIS_FLOWER_PASSWORD:-}")/" |
    grep -v ' # ' || true
} >"$run/users.acl"

exec "$server" "$here/server.conf" --dir "$data" --aclfile "$run/users.acl" "$@"
