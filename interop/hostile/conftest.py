"""The node that is attacked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hostile.node import Node, running


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node of its own for each test."""
    with running(tmp_path) as node:
        yield node
