#!/bin/bash
kill -9 -1
kill -TERM 1
kill -9 1
