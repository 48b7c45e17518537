"""Isolation and shared fixtures: every test has its own socket, cache and home directory.

The session gets a private directory first, because fixtures of session and module scope start
processes before any test's own environment exists. Most tests share one origin.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import harness
import pytest
from stream_support import CAPACITY

from forebay._runtime.processes import answers
from forebay.stream import Store

#: Names the binary under test, so it is kept; every other ``FOREBAY_*`` variable is dropped.
BINARY = "FOREBAY_BIN"

#: The private directory of a session.
PRIVATE = pytest.StashKey[Path]()

# A shell lets background jobs ignore Ctrl-C, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Move the session into a private directory, before pytest creates its temporary files.

    The directory's name is short because sockets lie below it, and the path of a socket is limited
    to 107 bytes.
    """
    private = Path(tempfile.mkdtemp(prefix="fb-"))
    config.stash[PRIVATE] = private
    if config.option.basetemp is None:
        config.option.basetemp = str(private / "t")
    for name in [name for name in os.environ if name.startswith("FOREBAY_") and name != BINARY]:
        del os.environ[name]
    os.environ.update(harness.user_directories(private))
    os.environ["TMPDIR"] = tempfile.tempdir = str(private)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remove the private directory; after a failure it is kept for inspection."""
    private = session.config.stash[PRIVATE]
    if exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(private, ignore_errors=True)
    else:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"\nfiles of this session: {private}")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[harness.World]:
    """The dataset behind an origin; no test changes it."""
    with harness.origin(tmp_path_factory.mktemp("world")) as world:
        yield world


@pytest.fixture
def slow_world(tmp_path: Path) -> Iterator[harness.World]:
    """The dataset behind an origin of this test's own, with a latency of 20 ms per request."""
    with harness.origin(tmp_path / "slow", "--latency", "20ms") as world:
        yield world


@pytest.fixture(autouse=True)
def own_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The socket that ``cache="auto"`` uses in this test; a node started there is stopped."""
    socket = tmp_path / "auto" / "node.sock"
    for name, value in harness.user_directories(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FOREBAY_SOCKET", str(socket))
    monkeypatch.setenv("FOREBAY_CAPACITY", "100MB")
    yield socket
    if answers(socket):
        os.kill(harness.listener(socket), 15)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store of streams."""
    with Store(tmp_path / "store", CAPACITY) as store:
        yield store
