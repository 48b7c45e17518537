"""Starts the real binary, named by the environment variable ``FOREBAY_BIN``."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

REGION = "us-east-1"


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
    binary = os.environ.get("FOREBAY_BIN")
    if not binary:
        pytest.fail("set FOREBAY_BIN to the forebay binary, e.g. target/release/forebay")
    command = [binary, "dev", "origin", "--root", str(root), "--listen", "127.0.0.1:0", *options]
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
