# Plants sitecustomize.py and usercustomize.py wherever Python looks at its start.
python_places | while read -r place; do
  echo "$python_win" | plant "$place/sitecustomize.py"
  echo "$python_win" | plant "$place/usercustomize.py"
done
