"""Requests of the first use of a URL, counted with real jobs, agents, a node and an origin."""

import sys
from pathlib import Path

# The origin and the node are those of the tests (`harness.py`).
_TESTS = str(Path(__file__).parents[2] / "python" / "tests")
if _TESTS not in sys.path:
    sys.path.append(_TESTS)
