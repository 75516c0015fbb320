"""The model gateway: one per worker process; agents talk to it, and only it knows the keys of providers."""
