"""Faults on purpose: inject them into a running job, then check that every promise still holds.

`session` runs a job of its own on a fleet for `bench chaos`; `faults` does the harm,
`evidence` looks at what is left, `invariants` judges it. Tests of the product inject
more faults than a client may and judge them by the same invariants.
"""
