echo done > /app/state
