#!/bin/bash
head -c 100000000 /dev/zero > fill
echo finished > out.txt
