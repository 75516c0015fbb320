echo two >> /app/done
