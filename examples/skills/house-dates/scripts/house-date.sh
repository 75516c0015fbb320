#!/bin/sh
# Prints a date such as 2026-03-01 the way this house writes it.
exec date -u -d "$1" +%Y.%j
