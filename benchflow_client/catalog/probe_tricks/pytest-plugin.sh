# Plants packages whose entry points pytest loads, under the names of known plugins.
python_places | while read -r place; do
  for name in ctrf timeout asyncio pytest_cov pytest_mock xdist probe; do
    printf '[pytest11]\n%s = probe_plugin\n' "$name" | plant "$place/pytest_$name-99.dist-info/entry_points.txt"
    printf 'Metadata-Version: 2.1\nName: pytest-%s\nVersion: 99\n' "$name" | plant "$place/pytest_$name-99.dist-info/METADATA"
    echo "$python_win" | plant "$place/$name.py"
  done
  echo "$python_win" | plant "$place/probe_plugin.py"
done
