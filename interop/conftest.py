"""The binary under test, named by ``FOREBAY_BIN``, and the servers that it talks to.

Every process gets a home directory of its own, so that a node, a cache or credentials of the user
that runs the tests are never found.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REGION = "us-east-1"


def binary() -> str:
    """The binary under test."""
    path = os.environ.get("FOREBAY_BIN")
    if not path:
        pytest.fail("set FOREBAY_BIN to the forebay binary, e.g. target/release/forebay")
    return str(Path(path).resolve())


def user_directories(root: Path) -> dict[str, str]:
    """Environment variables that give a process a home directory of its own, under ``root``.

    The runtime directory is created: ``forebay`` ignores one that does not exist and falls back to
    ``/tmp``, where the user's own node listens.
    """
    runtime = root / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return {
        "HOME": str(root),
        "XDG_CACHE_HOME": str(root / "cache"),
        "XDG_CONFIG_HOME": str(root / "config"),
        "XDG_RUNTIME_DIR": str(runtime),
    }


@pytest.fixture(autouse=True, scope="session")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A home directory for the servers and clients of this session, and no ``FOREBAY_*`` settings.

    ``FOREBAY_BIN`` stays, because it names the binary under test.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
            if name != "FOREBAY_BIN":
                patch.delenv(name)
        for name, value in user_directories(tmp_path_factory.mktemp("home")).items():
            patch.setenv(name, value)
        yield


@dataclass(frozen=True)
class Origin:
    """A running ``forebay dev origin``."""

    endpoint: str
    access_key: str
    secret_key: str
    root: Path


@contextmanager
def dev_origin(root: Path, *options: str) -> Iterator[Origin]:
    """Serve ``root`` until the block ends; the origin must then exit with code 0."""
    command = [binary(), "dev", "origin", "--root", str(root), "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"{command} printed nothing and exited with {process.wait(timeout=10)}"
            ready = json.loads(line)
            yield Origin(ready["endpoint"], ready["access_key"], ready["secret_key"], root)
        finally:
            process.terminate()
            process.wait(timeout=10)
    assert process.returncode == 0, f"exited with {process.returncode}"


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origin]:
    """An unshaped origin over an empty directory, shared by a module's tests."""
    with dev_origin(tmp_path_factory.mktemp("origin")) as running:
        yield running


@dataclass(frozen=True)
class Forebay:
    """The binary, with its own directory and environment."""

    directory: Path
    environment: Mapping[str, str]

    def run(
        self, *args: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end, with any exit code."""
        # Caches and settings go below HOME, where a test sees them; the socket would be a file too
        # many there.
        own = {"HOME": str(self.directory), "XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"]}
        environment = {**own, **self.environment, **(env or {})}
        return subprocess.run(
            [binary(), *args],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def json(self, *args: str, code: int = 0) -> Any:
        """Run a command that must exit with ``code``, and parse its output."""
        ran = self.run(*args, "--format", "json")
        assert (ran.returncode, ran.stderr) == (code, ""), ran
        return json.loads(ran.stdout)

    def refused(self, *args: str, env: Mapping[str, str] | None = None) -> str:
        """Run a command that must fail with one line on stderr, and return the line."""
        ran = self.run(*args, env=env)
        assert (ran.returncode, ran.stdout) == (2, ""), ran
        assert ran.stderr.startswith("error: "), ran
        assert ran.stderr.count("\n") == 1, ran
        return ran.stderr


def free_ports(count: int) -> list[int]:
    """Unused ports; all differ, because each stays bound until the last is chosen."""
    with ExitStack() as bound:
        sockets = [bound.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def server(
    command: list[str], log: Path, ready: Callable[[], bool], timeout: float = 60.0
) -> Iterator[None]:
    """Run a third-party server. If it does not start, skip the test and show its log."""
    name = Path(command[0]).name
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        except OSError as error:
            pytest.skip(f"{name} cannot be started: {error}")
    try:
        deadline = time.monotonic() + timeout
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-1000:]
                pytest.skip(f"{name} does not answer (code {process.poll()}): {tail}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
