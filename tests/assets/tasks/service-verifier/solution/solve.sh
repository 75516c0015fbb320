#!/bin/bash
set -e
echo done > /shared/answer.txt
mkdir -p /logs/verifier
