"""``python -m forebay.demo``: a small real network, trained straight from a slow origin and through
forebay.
"""
