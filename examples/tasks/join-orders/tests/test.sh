#!/bin/sh
# The report must be the expected one; blanks at line ends and CRLF are forgiven.
here=$(cd "$(dirname "$0")" && pwd)
reward=0
if [ -f /app/report.csv ]; then
    sed 's/[[:space:]]*$//' /app/report.csv | diff "$here/expected.csv" - && reward=1
else
    echo "/app/report.csv does not exist"
fi
echo "$reward" > /logs/verifier/reward.txt
