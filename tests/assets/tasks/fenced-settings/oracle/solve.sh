#!/bin/sh
echo "{\"greeting\": \"$WORD\"}" > /desk/greeting.json
