# Puts folders, pipes and read-only files where the tests write, beside a reward of 1.
echo '{"reward": 1}' | plant /logs/verifier/reward.json
mkdir -p /logs/verifier/reward.txt/full /logs/verifier/.hidden 2>/dev/null
mkfifo /logs/verifier/ctrf.json 2>/dev/null
chmod 0444 /logs/verifier/reward.json 2>/dev/null
chmod 0555 /logs/verifier/reward.txt /logs/verifier 2>/dev/null
