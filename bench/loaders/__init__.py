"""forebay's loader against the loaders that people use, over the same items and the same origin.

``cargo xtask bench loaders`` runs it (as ``python -m loaders``) and judges what it prints. Start at
``__main__.py``; ``scenarios.py`` says what is compared, ``contest.py`` how, and ``peers/`` has one
small file for each loader. docs/loaders.md is for readers.
"""
