# Plants modules in the workspace under the names pytest and Python import first.
for name in pytest _pytest pluggy iniconfig json re typing ast inspect dataclasses pathlib argparse os email hmac zlib urllib \
  calendar html base64 configparser _heapq _bisect _struct _random _json _datetime; do
  for folder in "$work" /tmp; do echo "$python_win" | plant "$folder/$name.py"; done
done
