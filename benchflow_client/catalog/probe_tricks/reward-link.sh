# Makes the reward files links to files of its own that say 1.
echo 1 | plant "$work/.one"
echo '{"reward": 1}' | plant "$work/.one.json"
for file in reward.txt test-stdout.txt; do ln -sfn "$work/.one" "/logs/verifier/$file" 2>/dev/null; done
ln -sfn "$work/.one.json" /logs/verifier/reward.json 2>/dev/null
