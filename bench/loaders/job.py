"""The processes of one loader: a parent that has imported it, and a fork of it for every job.

Importing PyTorch and a peer takes seconds. A fork starts at once, without clients, threads or
connections of an earlier measurement. Commands and answers are lines of JSON on a socket, one
connection for each job.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
import traceback
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loaders import forms, peers
from loaders.items import Items
from loaders.limits import cpu_seconds
from loaders.origin import Origin
from loaders.peers import Module, Task

Answer = dict[str, Any]


def encode(task: Task) -> dict[str, Any]:
    """A task as JSON."""
    made: dict[str, Any] = json.loads(json.dumps(asdict(task), default=str))
    return made


def decode(task: dict[str, Any]) -> Task:
    """A task from JSON."""
    items = task["items"]
    return Task(
        origin=Origin(**task["origin"]),
        items=Items(**{**items, "directory": Path(items["directory"])}),
        cache=Path(task["cache"]),
        **{name: task[name] for name in ("form", "workers", "cache_limit", "memory_limit", "job")},
    )


class Job:
    """One training process, which loads and does not train."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.task: Task | None = None
        self.loader: Iterable[Any] | None = None

    def start(self, task: dict[str, Any]) -> Answer:
        """Set up the job; the first job starts what all jobs share."""
        self.task = decode(task)
        os.environ.update(self.task.origin.environment())
        if self.task.job == 0:
            self.module.start(self.task)
        return {}

    def prepare(self, items: dict[str, Any], origin: dict[str, str]) -> Answer:
        """Write the items in the loader's own format."""
        given = Items(**{**items, "directory": Path(items["directory"])})
        self.module.prepare(given, Origin(**origin))
        return {}

    def epoch(self, time_limit: float | None) -> Answer:
        """Read all items once. The first epoch includes the construction of the loader."""
        assert self.task is not None
        cpu, began = cpu_seconds(), time.monotonic()
        if self.loader is None:
            self.loader = self.module.loader(self.task)
        samples, first = 0, None
        for batch in self.loader:
            samples += forms.touch(batch)
            now = time.monotonic()
            first = first or now
            if time_limit is not None and now - began > time_limit:
                break
        else:
            now = time.monotonic()
            if samples != self.task.items.count:
                raise RuntimeError(f"{samples} samples instead of {self.task.items.count}")
        assert first is not None
        return {
            "samples": samples,
            "began": began,
            "ended": now,
            "first": first - began,
            "cpu": cpu_seconds() - cpu,
        }

    def verify(self) -> Answer:
        """Read all items once, and check every byte."""
        assert self.task is not None
        if self.loader is None:
            self.loader = self.module.loader(self.task)
        samples = checksum = 0
        for batch in self.loader:
            samples += len(batch)
            if self.task.form in forms.PLAIN:
                checksum += sum(zlib.crc32(content) for content in batch)
        items = self.task.items
        if samples != items.count:
            raise RuntimeError(f"{samples} samples instead of {items.count}")
        if self.task.form in forms.PLAIN and checksum != items.checksum:
            raise RuntimeError("the items that were read are not the items that were written")
        return {}

    def close(self) -> Answer:
        """Drop the loader, so that its workers end."""
        self.loader = None
        gc.collect()
        return {}


def serve(connection: socket.socket, module: Module) -> None:
    """Carry out commands until the connection closes."""
    job = Job(module)
    with connection, connection.makefile("rw") as lines:
        lines.write(json.dumps({"pid": os.getpid()}) + "\n")
        lines.flush()
        for line in lines:
            command = json.loads(line)
            name = command.pop("command")
            try:
                answer = getattr(job, name)(**command)
            except Exception as problem:
                traceback.print_exc()
                answer = {"error": _one_line(problem)}
            lines.write(json.dumps(answer) + "\n")
            lines.flush()


def _one_line(problem: BaseException) -> str:
    """The type and the last line of an exception."""
    lines = str(problem).strip().splitlines() or [""]
    # A worker's error is a traceback, which ends with the message.
    return f"{type(problem).__name__}: {lines[-1]}"


def connections(path: str) -> Iterator[socket.socket]:
    """Accepted connections."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while True:
            yield listener.accept()[0]


def main() -> None:
    file, path = sys.argv[1:]
    module = next(peer for peer in peers.ALL if peer.file == file).module()
    for connection in connections(path):
        while _reaped():
            pass
        if os.fork() != 0:
            connection.close()
            continue
        os.setsid()  # so that it and its workers can be killed as a process group
        serve(connection, module)
        return


def _reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


if __name__ == "__main__":
    main()
