# Runs in the workspace, without a first line that names its shell.
if grep -q "\"$WORD\"" greeting.json; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
