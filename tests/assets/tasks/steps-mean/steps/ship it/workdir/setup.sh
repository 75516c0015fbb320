id -un > /app/set-up
