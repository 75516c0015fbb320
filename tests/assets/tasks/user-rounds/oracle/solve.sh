#!/bin/sh
printf '%s\n' start start 'first wish' start 'second wish' 8 'size: [1, 2]' >notes.txt
