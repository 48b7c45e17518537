"""Starts the real binary, named by the environment variable ``FOREBAY_BIN``."""

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


@dataclass(frozen=True)
class Origin:
    """A running ``forebay dev origin``."""

    endpoint: str
    access_key: str
    secret_key: str
    root: Path


@contextmanager
def dev_origin(root: Path, *options: str) -> Iterator[Origin]:
    """Serve ``root`` until the block ends, then stop in good order."""
    command = [binary(), "dev", "origin", "--root", str(root), "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"{command} said nothing and left with {process.wait(timeout=10)}"
            told = json.loads(line)
            yield Origin(told["endpoint"], told["access_key"], told["secret_key"], root)
        finally:
            process.terminate()
            process.wait(timeout=10)
    assert process.returncode == 0, f"stopped with {process.returncode}"


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origin]:
    """An unshaped origin over an empty directory, shared by a module's tests."""
    with dev_origin(tmp_path_factory.mktemp("origin")) as running:
        yield running


@dataclass(frozen=True)
class Forebay:
    """The binary, in a directory and an environment of its own."""

    directory: Path
    environment: Mapping[str, str]

    def run(
        self, *args: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end, whatever that is."""
        environment = {"HOME": str(self.directory), **self.environment, **(env or {})}
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
        """Run a command that must end with this code, and parse what it says."""
        ran = self.run(*args, "--format", "json")
        assert (ran.returncode, ran.stderr) == (code, ""), ran
        return json.loads(ran.stdout)

    def refused(self, *args: str, env: Mapping[str, str] | None = None) -> str:
        """Run a command that must fail with one line, and return the line."""
        ran = self.run(*args, env=env)
        assert (ran.returncode, ran.stdout) == (2, ""), ran
        assert ran.stderr.startswith("error: "), ran
        assert ran.stderr.count("\n") == 1, ran
        return ran.stderr


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses; all different, because all are held until the last is known."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def server(
    command: list[str], log: Path, ready: Callable[[], bool], patience: float = 60.0
) -> Iterator[None]:
    """Run a server that others wrote. If it does not come up, skip and say what it said."""
    name = Path(command[0]).name
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        except OSError as error:
            pytest.skip(f"{name} cannot be started: {error}")
    try:
        deadline = time.monotonic() + patience
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-1000:]
                pytest.skip(f"{name} does not answer (code {process.poll()}): {said}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
