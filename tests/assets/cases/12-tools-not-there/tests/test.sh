#!/bin/bash
curl -fsS https://tools.invalid/install.sh | sh
uvx --with pytest-json-ctrf pytest --ctrf /logs/verifier/ctrf.json /tests/test_out.py
if [ $? = 0 ]; then r=1; else r=0; fi
echo $r > /logs/verifier/reward.txt
