#!/bin/sh
mkdir -p site/cache site/deep
echo report > report.txt
echo page > site/index.html
echo page > site/deep/page.html
echo no > site/old.tmp
echo no > site/cache/x
ln -s /etc/passwd site/passwd
ln -s /etc/passwd link-to-a-secret
echo own > /logs/artifacts/own.txt
ln -s /etc/passwd /logs/artifacts/passwd
