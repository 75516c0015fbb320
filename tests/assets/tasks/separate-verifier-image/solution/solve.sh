#!/bin/sh
[ -z "${ONLY_HERE:-}" ] && ! command -v judge && echo done > state
