"""Shell parts for the two folders of one run of the tests: where their tools keep things, and the plugin guard.

Both have a name no other run has. `programs` puts these parts into its programs; they find
`run`, `guard`, `agent`, `judge` and `kept`, and `only_root_writes`.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LIST_CHANGED", "LOAD_GUARD", "MAKE_STATE", "OWN_VARIABLES", "PLACES", "USE_STATE"]

_STATE: Final = {
    "UV_CACHE_DIR": "uv-cache",
    "UV_TOOL_DIR": "uv-tools",
    "UV_PYTHON_INSTALL_DIR": "uv-python",
    "PIP_CACHE_DIR": "pip-cache",
    "UV_CONFIG_FILE": "uv.toml",
}

OWN_VARIABLES: Final = frozenset({"PATH", "PYTHONPATH", "BASH_ENV", "PIP_PREFIX", *_STATE})
"""Variables the programs set in the sandbox, where the task does not."""

PLACES: Final = """
state=/_benchflow_verifier_$run place=/_benchflow_guard_$run
"""

MAKE_STATE: Final = """
keep() {
  [ "$agent" != root ] && [ -z "$judge" ] && [ -d "$2" ] && only_root_writes "$2" && ln -sfn "$2" "$state/$1"
}
make_state() {
  mkdir -p "$state" && chmod 0700 "$state" || return 0
  caches=${XDG_CACHE_HOME:-/root/.cache} data=${XDG_DATA_HOME:-/root/.local/share}
  keep uv-cache "${UV_CACHE_DIR:-$caches/uv}"
  keep uv-tools "${UV_TOOL_DIR:-$data/uv/tools}"
  keep uv-python "${UV_PYTHON_INSTALL_DIR:-$data/uv/python}"
  keep pip-cache "${PIP_CACHE_DIR:-$caches/pip}"
  : >"$state/uv.toml"
  for file in "${UV_CONFIG_FILE:-}" /root/.config/uv/uv.toml /etc/uv/uv.toml; do
    if [ "$agent" != root ] && [ -f "$file" ] && [ ! -L "$file" ] && only_root_writes "${file%/*}"; then
      cat "$file" >"$state/uv.toml"
      break
    fi
  done
  [ -z "$judge" ] || chown "$judge" "$state" 2>/dev/null || chmod 0777 "$state"
}
make_state
true
"""
"""What the image brought there for root serves tests without network, so it is linked, not lost: with an
unprivileged agent nobody else wrote it."""

USE_STATE: Final = f"""
if [ -d "$state" ]; then
  for each in {" ".join(f"{name}={entry}" for name, entry in _STATE.items())}; do
    case $kept in
      *" ${{each%%=*}} "*) ;;
      *) export "${{each%%=*}}=$state/${{each#*=}}" ;;
    esac
  done
fi
if [ -r /etc/os-release ]; then
  while IFS='=' read -r name value; do
    case $name=$value in
      ID=*fedora* | ID_LIKE=*fedora* | ID=*rhel* | ID_LIKE=*rhel* | ID=*centos*)
        case $kept in *" PIP_PREFIX "*) ;; *) export PIP_PREFIX=/usr/local ;; esac
        ;;
    esac
  done </etc/os-release
fi
"""
"""On images of Fedora's family pip installs for root where the system's own packages stand, unless it is told."""

LIST_CHANGED: Final = """
if [ -n "$guard" ] && [ ! -e "$place/changed" ]; then
  mkdir -p "$place" && chmod 0755 "$place" || fail guard
  [ -z "$changed" ] || : >"$place/dated"
  end=-print
  if find / -prune -print0 >/dev/null 2>&1; then end=-print0; fi
  find "$real" $changed \\( -name '*.py' -o -name '*.pyc' -o -name '*.so' -o -name '*.zip' -o -name '*.egg' \\
    -o -name '*.dist-info' -o -name '*.egg-info' -o -name '*.egg-link' -o -name entry_points.txt \\) \\
    $end >"$place/listed" 2>/dev/null
  mv "$place/listed" "$place/changed" || fail guard
fi
"""
"""What the agent wrote of all that a plugin can be made of, while its change time still tells."""

LOAD_GUARD: Final = """
if [ -n "$guard" ]; then
  PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$place
  PYTEST_ADDOPTS="-p $guard ${PYTEST_ADDOPTS-}"
  export PYTHONPATH PYTEST_ADDOPTS
  if [ -n "$copies" ] && command -v python3 >/dev/null 2>&1; then
    python3 -I -S -c 'import site, sys
print("\\n".join(site.getsitepackages()))' 2>/dev/null | while IFS= read -r folder; do
      if [ -d "$folder" ]; then cp "$place/$guard.py" "$folder/" 2>/dev/null; fi
    done
  fi
fi
"""
"""Before any other plugin. Tests that drop PYTHONPATH find it among the packages of the image's Python."""
