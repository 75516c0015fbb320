#!/bin/sh
exec sh "$BENCHFLOW_VERIFIER_DIR/judge.sh"
