echo three >> /app/done
