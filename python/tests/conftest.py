"""Every test has a socket and a cache of its own; most share one origin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import harness
import pytest

from forebay._processes import answers


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.World]:
    """The dataset behind an origin; no test changes it."""
    with harness.origin(tmp_path_factory.mktemp("world")) as world:
        yield world


@pytest.fixture
def slow_world(tmp_path: Path) -> Iterator[harness.World]:
    """The dataset behind an origin of this test's own, slow enough to be caught in the middle."""
    with harness.origin(tmp_path / "slow", "--latency", "20ms") as world:
        yield world


@pytest.fixture(autouse=True)
def own_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where ``cache="auto"`` looks in this test; a node that was started there is ended."""
    socket = tmp_path / "auto" / "node.sock"
    monkeypatch.setenv("FOREBAY_SOCKET", str(socket))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FOREBAY_CAPACITY", "100MB")
    yield socket
    if answers(socket):
        os.kill(harness.listener(socket), 15)
