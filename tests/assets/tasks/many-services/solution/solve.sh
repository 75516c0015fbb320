#!/bin/sh
echo "$(cat /shared/seed) second" > /shared/book/page
