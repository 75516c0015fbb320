#!/bin/sh
test -f /tmp/ready && echo started > /app/found
