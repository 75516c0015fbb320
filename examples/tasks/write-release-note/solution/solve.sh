#!/bin/sh
cat > /app/note.md <<'NOTE'
# Release 1.4.0

- BREAKING: the flag `--fast` is now called `--quick`.
- Large files are read in parts and need a tenth of the memory.
- Messages about broken input name the file and the line.
NOTE
