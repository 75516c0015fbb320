"""A private fleet on this machine, for when no broker is configured."""
