"""Attacks on a node, by a client that was written from ``docs/reference/wire.md`` alone.

Every class of attack that has ever succeeded is a test here. ``python -m hostile.measure`` prints
how long victims wait.
"""
