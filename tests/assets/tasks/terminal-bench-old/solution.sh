wc -l < data/poem.txt | tr -d " " > count.txt
