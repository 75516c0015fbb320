# Plants packages and modules in the workspace that stand before the plugins of pytest the image brings.
found=$(python3 - 2>/dev/null <<'PYTHON'
import importlib.metadata
for dist in importlib.metadata.distributions():
    for point in dist.entry_points:
        if point.group == "pytest11":
            print(point.name + "=" + point.value.split(":")[0].split(".")[0])
PYTHON
)
for pair in $found ctrf=pytest_json_ctrf timeout=pytest_timeout asyncio=pytest_asyncio pytest_cov=pytest_cov xdist=xdist; do
  name=${pair%%=*} module=${pair#*=}
  printf '[pytest11]\n%s = probe_plugin\n' "$name" | plant "$work/$name-99.dist-info/entry_points.txt"
  printf 'Metadata-Version: 2.1\nName: %s\nVersion: 99\n' "$name" | plant "$work/$name-99.dist-info/METADATA"
  echo "$python_win" | plant "$work/$module.py"
  echo "$python_win" | plant "$work/$name.py"
done
echo "$python_win" | plant "$work/probe_plugin.py"
