#!/bin/sh
printf '%s\n' 'one calm' two 'three after 2 lines, 0 left, mood none' >lines.txt
