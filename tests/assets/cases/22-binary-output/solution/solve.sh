#!/bin/bash
printf '\xff\x00\033[31m\r\b\n'
head -c 5000 /dev/urandom
