"""forebay: plain objects, one node for all jobs of the machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import forebay
from forebay._runtime.processes import binary
from loaders import forms
from loaders.items import Items
from loaders.origin import BUCKET, Origin
from loaders.peers import BATCH, Task

#: Memory of the agent, small because it would be a cache besides the limited one.
AGENT_MEMORY = "8MiB"
#: Capacity of an unlimited cache, as a multiple of the blobs: headers, regions that are being
#: filled, and copies of blobs that are evicted.
CAPACITY_FACTOR = 1.25

_nodes: list[subprocess.Popen[bytes]] = []


def prepare(items: Items, origin: Origin) -> None:
    source = f"s3://{BUCKET}/{items.directory.name}"
    build = [binary(), "digest", "build", source, "-o", str(_digest(items))]
    environment = {**os.environ, **origin.environment()}
    subprocess.run(build, env=environment, check=True, stdout=subprocess.DEVNULL)


def start(task: Task) -> None:
    capacity = task.cache_limit or int(task.items.size * CAPACITY_FACTOR)
    serve = [binary(), "serve", "--socket", str(_socket(task)), "--directory", str(task.cache)]
    serve += ["--capacity", f"{capacity}B"]
    if task.memory_limit is not None:
        serve += ["--memory-cache", f"{task.memory_limit}B"]
    environment = {**os.environ, "FOREBAY_LOG": "warn"}
    node = subprocess.Popen(serve, stdout=subprocess.PIPE, env=environment)
    assert node.stdout is not None
    if not node.stdout.readline():
        raise RuntimeError("the node did not start")
    _nodes.append(node)


def loader(task: Task) -> Iterable[Any]:
    origin = task.origin
    if task.cache_limit is not None:
        os.environ["FOREBAY_AGENT_MEMORY"] = AGENT_MEMORY
    options = {
        "endpoint": origin.endpoint,
        "access_key": origin.access_key,
        "secret_key": origin.secret_key,
    }
    # Views avoid a copy where the collate function converts items.
    dataset = forebay.Dataset(
        _digest(task.items),
        cache=_socket(task),
        storage_options=options,
        views=task.form != "bytes",
    )
    return forebay.DataLoader(
        dataset,
        shuffle=True,
        batch_size=BATCH,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
        collate_fn=forms.collate(task.form),
    )


def _digest(items: Items) -> Path:
    return items.scratch / f"{items.directory.name}.digest"


def _socket(task: Task) -> Path:
    return task.cache / "node.sock"
