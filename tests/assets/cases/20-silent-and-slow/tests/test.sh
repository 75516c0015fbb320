#!/bin/sh
sleep 3132
