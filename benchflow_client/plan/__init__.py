"""From what was asked for to what is sent."""
