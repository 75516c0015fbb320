#!/bin/sh
mkdir report
cp built report/page
echo draft > report/page.tmp
