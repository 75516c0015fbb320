#!/bin/sh
echo "$WHO $KEPT"
cat shipped
if [ "$WHO $KEPT" = "step yes" ] && [ "$(cat shipped)" = built ] && [ ! -e /tests/judge.sh ]; then
  echo 0.5
else
  echo 0
fi > /logs/verifier/reward.txt
