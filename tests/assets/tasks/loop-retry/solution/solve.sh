#!/bin/sh
touch one two three
