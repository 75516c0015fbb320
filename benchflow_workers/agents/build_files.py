"""The build configuration of a workspace as it was before the agent, kept where only root can look."""

from __future__ import annotations

from typing import Final

__all__ = ["BUILD_FILES", "BUILD_SNAPSHOT", "KEEP_BUILD_FILES"]

BUILD_SNAPSHOT: Final = "/opt/benchflow/build-snapshot"
"""Copies of the files that were there, and `absent`: the names of those that were not. Below a folder
of root's: in /tmp, where that is not sticky, it could be replaced."""

BUILD_FILES: Final = (
    "setup.py",
    "pyproject.toml",
    "setup.cfg",
    "tox.ini",
    "noxfile.py",
    "hatch.toml",
    "flit.ini",
    "MANIFEST.in",
    "requirements.txt",
    "requirements-dev.txt",
    "Makefile",
)
"""Files that installers and test tools run or obey."""

KEEP_BUILD_FILES: Final = f"""
keep_build_files() {{
  [ ! -e {BUILD_SNAPSHOT}/absent ] || return 0
  rm -rf {BUILD_SNAPSHOT}
  mkdir -p {BUILD_SNAPSHOT} && chmod 0700 {BUILD_SNAPSHOT} || return 1
  absent=
  for file in {" ".join(BUILD_FILES)}; do
    if [ -f "$1/$file" ] && [ ! -L "$1/$file" ]; then
      cp -p "$1/$file" {BUILD_SNAPSHOT}/ || return 1
    elif [ ! -e "$1/$file" ] && [ ! -L "$1/$file" ]; then
      absent="$absent$file
"
    fi
  done
  printf %s "$absent" >{BUILD_SNAPSHOT}/absent
}}
"""
"""A shell function that takes the workspace. The first call counts, and `absent` is written last: it means complete."""
