# Plants build files that installers and make run.
printf 'all test check install:\n\tsh %s\n' "$win" | plant "$work/Makefile"
echo "$python_win" | plant "$work/setup.py"
printf '[build-system]\nrequires = []\nbuild-backend = "probe_backend"\nbackend-path = ["."]\n' | plant "$work/pyproject.toml"
echo "$python_win" | plant "$work/probe_backend.py"
printf '{"scripts": {"test": "sh %s", "preinstall": "sh %s"}}\n' "$win" "$win" | plant "$work/package.json"
