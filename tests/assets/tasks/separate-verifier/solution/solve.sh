#!/bin/sh
set -e
printf '#!/bin/sh\necho 42\n' > /usr/local/bin/sum-of && chmod +x /usr/local/bin/sum-of
echo x > /opt/left-behind
sum-of > sum.txt
rm draft.txt
cp sum.txt /srv/report.txt
echo own > /logs/artifacts/own.txt
