#!/bin/sh
if grep -qx started /app/found; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
