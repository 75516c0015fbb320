#!/bin/bash
set -e
cp /post/letter.txt /app/answer.txt
echo "thank you" > /post/reply.txt
