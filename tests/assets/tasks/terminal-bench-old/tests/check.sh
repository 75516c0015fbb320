grep -qx "$EXPECTED" count.txt
