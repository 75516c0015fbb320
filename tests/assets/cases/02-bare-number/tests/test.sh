#!/bin/bash
echo -n 0.75 > "$BENCHFLOW_REWARD_JSON"
