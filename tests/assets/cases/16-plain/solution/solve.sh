#!/bin/bash
set -e
echo finished > out.txt
