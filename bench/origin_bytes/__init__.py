"""Benchmark of origin bytes: what jobs that share a node read from the origin, byte by byte.

Several jobs read one dataset concurrently. Each is a process with its own loader and agent, around
one node. Whenever the leading job has finished an epoch, all counters are read: the origin's own,
and those of every agent, which count bytes by cause. A **turn** is one epoch of the fastest job.

``python -m origin_bytes table`` in ``bench/`` runs it
and prints a row for each number of jobs, cache and spread of rates. ``settings.py`` has the
targets, ``measure.py`` the measurement, ``job.py`` the process of one job, ``table.py`` the report.
Results are in ``docs/results/origin-bytes.md``. ``python/tests/test_origin_bytes.py`` runs a few
settings.
"""

import sys
from pathlib import Path

# The origin and the node are those of the tests (`harness.py`).
_TESTS = str(Path(__file__).parents[2] / "python" / "tests")
if _TESTS not in sys.path:
    sys.path.append(_TESTS)
