"""Spans of what a worker does, for a collector of OpenTelemetry; none are made where nobody takes them."""
