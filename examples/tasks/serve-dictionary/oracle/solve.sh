#!/bin/sh
cat > /app/dictionary <<'SERVICE'
#!/bin/sh
words=$1
folder=$2
mkfifo "$folder/answer" "$folder/ask" || exit 1
# Both ends stay open here, so that a client that leaves never ends the service.
exec 3<>"$folder/ask" 4<>"$folder/answer"
while IFS= read -r word <&3; do
    meaning=$(sed -n "s/^$word=//p" "$words")
    echo "${meaning:-unknown}" >&4
done
SERVICE
chmod 755 /app/dictionary

mkdir -p /app/desk
rm -f /app/desk/ask /app/desk/answer
/app/dictionary /app/words.txt /app/desk </dev/null >/app/desk/log 2>&1 &

tries=0
while [ ! -p /app/desk/ask ]; do
    tries=$((tries + 1))
    [ "$tries" -gt 100 ] && { echo "the service did not start" >&2; exit 1; }
    sleep 0.1
done

while IFS= read -r word; do
    echo "$word" > /app/desk/ask
    IFS= read -r answer < /app/desk/answer
    echo "$answer"
done < /app/questions.txt > /app/answers.txt
