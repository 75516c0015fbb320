#!/bin/sh
echo "{\"greeting\": \"$WORD\"}" > /work/greeting.json
