#!/bin/sh
cat word given > built
