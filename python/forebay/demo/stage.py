"""What stands around the network: an origin far away, the digest of what it holds, and a node."""

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

#: Twice what the data takes, and what a device needs besides: room for everything.
_ROOM, _DEVICE = 2, 16 << 20
#: A node is ended with the demonstration; should that be killed, the node leaves by itself.
_IDLE_EXIT = "1min"


class Origin:
    """A server far away that counts what it sends."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def bytes_sent(self) -> int:
        """Since it was started."""
        with urllib.request.urlopen(f"{self.options['endpoint']}/-/counters", timeout=10) as answer:
            count: int = json.load(answer)["bytes_sent"]
            return count

    def build_digest(self, digest: Path, columns: Path) -> None:
        """The table of what is in its bucket."""
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": self.options["endpoint"],
            "AWS_ACCESS_KEY_ID": self.options["access_key"],
            "AWS_SECRET_ACCESS_KEY": self.options["secret_key"],
            "AWS_REGION": "us-east-1",
        }
        build = [binary(), "digest", "build", "s3://bucket/train", "-o", str(digest)]
        built = subprocess.run(
            [*build, "--columns", str(columns)], env=environment, capture_output=True, text=True
        )
        if built.returncode != 0:
            raise ForebayError(f"the digest was not built: {built.stderr.strip()}")


@contextmanager
def origin(root: Path, latency: str, bandwidth: str) -> Iterator[Origin]:
    """Serve a directory of buckets, so slowly, until the block ends."""
    shape = ("--latency", latency, "--bandwidth", bandwidth)
    with _started("dev", "origin", "--root", str(root), *shape) as told:
        yield Origin(json.loads(told))


@contextmanager
def node(directory: Path, data_bytes: int) -> Iterator[Path]:
    """A node with room for all of the data, until the block ends; where it listens."""
    directory.mkdir(mode=0o700)
    socket = directory / "node.sock"
    places = ["--socket", str(socket), "--directory", str(directory / "blobs")]
    capacity = ["--capacity", f"{_ROOM * data_bytes + _DEVICE}B", "--idle-exit", _IDLE_EXIT]
    with _started("serve", *places, *capacity):
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
