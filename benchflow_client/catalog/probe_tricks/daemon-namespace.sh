# Leaves a process in namespaces of its own, where it is root.
if command -v unshare >/dev/null 2>&1; then
  daemon "trap '' HUP INT TERM; exec unshare -Ur sh -c 'while :; do sh $win; sleep 0.3; done'"
  daemon "trap '' HUP INT TERM; exec unshare -Urpf --mount-proc sh -c 'while :; do sh $win; sleep 0.3; done'"
fi
