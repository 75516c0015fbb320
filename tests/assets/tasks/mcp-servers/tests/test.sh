#!/bin/sh
if grep -q '"url": "http://127.0.0.1:8000/mcp"' seen.json && grep -q '"X-Team": "blue"' seen.json; then echo 1; else echo 0; fi \
  > /logs/verifier/reward.txt
