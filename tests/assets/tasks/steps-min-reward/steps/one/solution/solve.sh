echo one >> /app/done
