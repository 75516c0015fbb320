# Plants modules in the workspace under the names pytest and Python import first.
for name in pytest _pytest pluggy iniconfig json re typing ast inspect dataclasses pathlib argparse os; do
  echo "$python_win" | plant "$work/$name.py"
  echo "$python_win" | plant "/tmp/$name.py"
done
