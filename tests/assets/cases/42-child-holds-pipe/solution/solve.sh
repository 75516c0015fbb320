#!/bin/bash
echo finished > out.txt
sleep 300 &
