# helper of both steps
check() { if "$@"; then echo 1; else echo 0; fi; }
