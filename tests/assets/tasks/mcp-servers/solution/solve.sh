#!/bin/sh
printf '{"url": "http://127.0.0.1:8000/mcp", "X-Team": "blue"}' > seen.json
