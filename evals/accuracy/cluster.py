"""The real parts around the jobs: an origin that serves the dataset, its digest, and a node."""

from __future__ import annotations

import json
import math
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay._processes import binary

#: An origin as far away as object storage is: a cache is worth something to its jobs.
SHAPE = ("--latency", "20ms")
#: What a node keeps of its capacity for regions that are not full.
SPARE = 0.1
#: The unit of eviction; capacity is a multiple of it. One is for the device's own head, and one
#: because pieces of a dataset are not all of one size.
REGION, MORE_REGIONS = 1 << 20, 2


@dataclass
class Served:
    """A dataset behind an origin."""

    digest: Path
    bytes: int
    options: dict[str, Any]

    def counters(self) -> Any:
        """What the origin has counted."""
        with urllib.request.urlopen(f"{self.options['endpoint']}/-/counters", timeout=10) as answer:
            return json.load(answer)


@contextmanager
def served(directory: Path, arguments: Sequence[str]) -> Iterator[Served]:
    """Serve ``directory/train`` from an origin; its digest is built with these arguments."""
    with _started("dev", "origin", "--root", str(directory.parent), *SHAPE) as told:
        options = json.loads(told)
        digest = directory / "train.digest"
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": options["endpoint"],
            "AWS_ACCESS_KEY_ID": options["access_key"],
            "AWS_SECRET_ACCESS_KEY": options["secret_key"],
            "AWS_REGION": "us-east-1",
        }
        build = [binary(), "digest", "build", f"s3://{directory.name}/train", "-o", str(digest)]
        built = subprocess.run(
            [*build, "--format", "json", *arguments],
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
        )
        yield Served(digest, json.loads(built.stdout)["bytes"], options)


@contextmanager
def node(directory: Path, share: float, of_bytes: int) -> Iterator[Path]:
    """A node that can keep such a share of a dataset, on flash alone; its socket."""
    capacity = (math.ceil(share * of_bytes / (1 - SPARE) / REGION) + MORE_REGIONS) * REGION
    directory.mkdir(mode=0o700)
    socket = directory / "node.sock"
    places = ["--socket", str(socket), "--directory", str(directory / "blobs")]
    with _started("serve", *places, "--capacity", f"{capacity}B", "--memory", "0B"):
        yield socket


def explained(digest: Path, socket: Path) -> Any:
    """How the node sees a dataset."""
    command = [binary(), "explain", str(digest), "--socket", str(socket), "--format", "json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


@contextmanager
def _started(*arguments: str) -> Iterator[str]:
    """A process that says on one line that it is ready, until the block ends."""
    with subprocess.Popen([binary(), *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"`forebay {arguments[0]}` does not start")
            yield line
        finally:
            process.terminate()
