#!/bin/bash
set -e
cp /app/found.txt /app/answer.txt
