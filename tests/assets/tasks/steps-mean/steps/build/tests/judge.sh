echo "$WHO $KEPT"
if [ "$WHO $KEPT" = "task yes" ] && [ "$(cat state)" = built ]; then
  echo '{"reward": 1.0, "speed": 0.5}' > /logs/verifier/reward.json
else
  echo '{"reward": 0.0, "speed": 0.0}' > /logs/verifier/reward.json
fi
