"""Benchmark of forebay's loader against other loaders, over the same items and the same origin.

``cargo xtask bench loaders`` runs it (as ``python -m loaders``) and evaluates its output. Start at
``__main__.py``. ``scenarios.py`` has what is compared, ``comparison.py`` how, and ``peers/`` one
small file for each loader. Results are in ``docs/results/loaders.md``.
"""
