#!/bin/sh
sha256sum < "$BENCHFLOW_INSTRUCTION" > out.txt
