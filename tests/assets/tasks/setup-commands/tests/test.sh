#!/bin/sh
cat /srv/first /srv/open/second user
id -un
if grep -qx "/srv/site root word all fallback" /srv/first &&
  grep -qx nobody /srv/open/second &&
  grep -Eqx "root|worker" user &&
  [ "$(id -un)" = nobody ]
then
  echo 1
else
  echo 0
fi > /logs/verifier/reward.txt
