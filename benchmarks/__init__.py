"""Measurements, run as modules from the repository: `python -m benchmarks.overhead`."""
