"""What runs outside the worker for local sandboxes: the nursery that forks them, and their first process.

Imports nothing but the standard library, so that one small process can be
forked for each sandbox. `benchflow_workers.sandbox.local` is its only client.
"""
