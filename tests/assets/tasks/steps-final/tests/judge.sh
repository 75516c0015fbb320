if [ "$(cat state 2>/dev/null)" = done ]; then echo 1; else echo 0.25; fi > /logs/verifier/reward.txt
