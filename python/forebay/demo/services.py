"""What stands around a job that is to be shown or measured: an origin, the digest of what it holds,
and a node; real ones, for as long as they are needed.
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
from forebay._processes import binary

#: Whoever starts a node ends it; should that one be killed, the node leaves by itself.
_IDLE_EXIT = "1min"


class Origin:
    """A server that counts what it sends."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def bytes_sent(self) -> int:
        """Since it was started."""
        with urllib.request.urlopen(f"{self.options['endpoint']}/-/counters", timeout=10) as answer:
            count: int = json.load(answer)["bytes_sent"]
            return count

    def build_digest(self, url: str, digest: Path, *arguments: str) -> int:
        """The table of what is there; how many bytes that is."""
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
            raise ForebayError(f"the digest was not built: {built.stderr.strip()}")
        size: int = json.loads(built.stdout)["bytes"]
        return size


@contextmanager
def origin(root: Path, *shape: str) -> Iterator[Origin]:
    """Serve a directory of buckets until the block ends, as slowly as ``shape`` says."""
    with _started("dev", "origin", "--root", str(root), *shape) as told:
        yield Origin(json.loads(told))


@contextmanager
def node(directory: Path, capacity: int, *options: str) -> Iterator[Path]:
    """A node that reserves so many bytes, until the block ends; where it listens."""
    directory.mkdir(mode=0o700)
    socket = directory / "node.sock"
    places = ["--socket", str(socket), "--directory", str(directory / "blobs")]
    size = ["--capacity", f"{capacity}B", "--idle-exit", _IDLE_EXIT]
    with _started("serve", *places, *size, *options):
        yield socket


@contextmanager
def _started(*arguments: str) -> Iterator[str]:
    """A process that says on one line that it is ready, until the block ends."""
    process = subprocess.Popen(
        [binary(), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={"FOREBAY_LOG": "warn", **os.environ},
        start_new_session=True,  # a Ctrl-C is meant for us, who end it
    )
    with process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise ForebayError(f"`forebay {arguments[0]}` does not start; it has said why")
            yield line
        finally:
            process.terminate()
            process.wait(timeout=10)
