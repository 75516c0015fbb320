"""The records everything else speaks in; imports nothing but errors."""
