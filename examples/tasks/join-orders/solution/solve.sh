#!/bin/sh
set -e
cd /app/data
sed -n 's/.*"\([A-Z]*\)": *\([0-9.]*\).*/\1,\2/p' rates.json > /tmp/rates.csv
echo "country,orders,total_eur" > /app/report.csv
LC_ALL=C awk -F, '
    FILENAME ~ /rates/ { rate[$1] = $2; next }
    FNR == 1 { next }
    FILENAME ~ /customers/ { country[$1] = $3; next }
    $5 == "paid" && ($2 in country) {
        place = country[$2]
        orders[place]++
        total[place] += $3 * rate[$4]
    }
    END { for (place in orders) printf "%s,%d,%.2f\n", place, orders[place], total[place] }
' /tmp/rates.csv customers.csv orders.csv | LC_ALL=C sort >> /app/report.csv
rm /tmp/rates.csv
