"""Services of a demo or an evaluation: an origin, a digest of its data, and a node.

All are real processes of the ``forebay`` binary, which end with their block.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay._native import ForebayError
from forebay._runtime.processes import binary

#: Idle time after which the node exits, in case this process is killed.
_IDLE_EXIT = "1min"


class Origin:
    """An S3 server that counts the bytes that it sends."""

    def __init__(self, options: dict[str, Any]) -> None:
        #: Storage options for ``forebay.Dataset``.
        self.options = options

    def bytes_sent(self) -> int:
        """Bytes sent since the start."""
        with urllib.request.urlopen(f"{self.options['endpoint']}/-/counters", timeout=10) as answer:
            count: int = json.load(answer)["bytes_sent"]
            return count

    def build_digest(self, url: str, digest: Path, *arguments: str) -> int:
        """Build the digest of a URL; returns the size of its data in bytes."""
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": self.options["endpoint"],
            "AWS_ACCESS_KEY_ID": self.options["access_key"],
            "AWS_SECRET_ACCESS_KEY": self.options["secret_key"],
            "AWS_REGION": "us-east-1",
        }
        build = [binary(), "digest", "build", url, "-o", str(digest), "--format", "json"]
        built = subprocess.run(
            [*build, *arguments], env=environment, capture_output=True, text=True
        )
        if built.returncode != 0:
            raise ForebayError(f"cannot build a digest of `{url}`: {built.stderr.strip()}")
        size: int = json.loads(built.stdout)["bytes"]
        return size


@contextmanager
def origin(root: Path, *shape: str) -> Iterator[Origin]:
    """Serve a directory of buckets, with the latency and bandwidth in ``shape``."""
    with _running("dev", "origin", "--root", str(root), *shape) as line:
        yield Origin(json.loads(line))


@contextmanager
def node(directory: Path, capacity: int, *options: str) -> Iterator[Path]:
    """Run a node with ``capacity`` bytes; yields its socket."""
    directory.mkdir(mode=0o700)
    socket = directory / "node.sock"
    paths = ["--socket", str(socket), "--directory", str(directory / "blobs")]
    size = ["--capacity", f"{capacity}B", "--idle-exit", _IDLE_EXIT]
    with _running("serve", *paths, *size, *options):
        yield socket


@contextmanager
def _running(*arguments: str) -> Iterator[str]:
    """Run ``forebay``; yields the line that it prints when it is ready."""
    process = subprocess.Popen(
        [binary(), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={"FOREBAY_LOG": "warn", **os.environ},
        start_new_session=True,  # Ctrl-C must reach this process only, which ends the other
    )
    with process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise ForebayError(f"`forebay {arguments[0]}` did not start; see its error above")
            yield line
        finally:
            process.terminate()
            process.wait(timeout=10)
