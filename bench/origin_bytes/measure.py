"""Runs the jobs of a setting around one node, and counts what they read from the origin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import harness

import forebay
from forebay import _native
from origin_bytes.progress import Progress
from origin_bytes.settings import Outcome, Setting, Window

#: Causes that agents count separately; every other byte was fetched under a claim.
CAUSES = ("probe", "uncached", "fallback")
#: Fraction of its capacity that a node keeps free (`docs/guide/node.md`).
FREE_SPACE = 0.1
#: The smallest node. Of a dataset whose half-chunks are larger it keeps nothing.
CAPACITY_MIN = 8 << 20
#: Timeout of an epoch.
EPOCH_SECONDS_MAX = 300.0


def numbered(items: int, size: int, first: int = 0) -> Iterator[bytes]:
    """Items of one size that begin with their number, so that all differ."""
    filling = bytes(range(256)) * (size // 256 + 1)
    for item in range(first, first + items):
        yield item.to_bytes(8, "little") + filling[: size - 8]


def run(world: harness.World, directory: Path, setting: Setting, size: int, items: int) -> Outcome:
    """Count the origin bytes of a setting over a dataset of ``items`` items of ``size`` bytes."""
    total, batches = size * items, -(-items // setting.batch)
    capacity = max(CAPACITY_MIN, int(total * (setting.cache + 0.01) / (1.0 - FREE_SPACE)))
    with ExitStack() as stack:
        options = ("--capacity", f"{capacity}B", "--memory-cache", "1MiB")
        stack.enter_context(harness.node(directory, *options))
        socket = directory / "node.sock"
        progress = Progress(directory / "progress", setting.jobs)
        jobs = [
            stack.enter_context(job(world, socket, progress, setting, number))
            for number in range(setting.jobs)
        ]
        agents = [Path(json.loads(read_line(one))["agent"]) for one in jobs]
        counters = Counters(world, socket, agents, progress)
        marks = [counters.read()]
        for one in jobs:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        for epoch in range(setting.epochs):
            wait_for(jobs, progress, (epoch + 1) * batches)
            marks.append(counters.read())
        explained = world.explained(socket)
        for one in jobs:
            assert one.stdin is not None
            one.stdin.close()
        for one in jobs:
            assert one.stdout is not None
            exact = [json.loads(line)["exact"] for line in one.stdout]
            assert all(exact), "every item once (promise 2)"
            assert one.wait(timeout=60) == 0
    first, later = (
        window(before, after, total, batches)
        for before, after in [(marks[0], marks[1]), (marks[1], marks[-1])]
    )
    return Outcome(setting, first, later, (explained or {}).get("why", "no job reports"))


class Counters:
    """Reads the counters of the origin, the node and all agents."""

    def __init__(
        self, world: harness.World, socket: Path, agents: Sequence[Path], progress: Progress
    ) -> None:
        self._world, self._socket, self._progress = world, socket, progress
        digest = _native.Digest(world.digest)
        self._layout = _native.ItemMap(digest)
        self._agents = [_native.Reader(digest, None, agent, "origin-bytes") for agent in agents]

    def read(self) -> dict[str, Any]:
        progress, origin = self._progress.all(), self._world.counters()["bytes_sent"]
        sums = Counter[str]()
        for agent in self._agents:
            with suppress(forebay.AgentGone):  # not started yet
                sums.update(agent.stats()["agent"] or {})
        half_chunks = (self._world.explained(self._socket) or {}).get("half_chunks", [])
        pinned = [at for at, state in enumerate(half_chunks) if state == "pinned"]
        causes = {cause: sums[f"agent_{cause}_bytes"] for cause in CAUSES}
        causes["claimed"] = sums["agent_origin_bytes"] - sum(causes.values())
        share = self._layout.share(pinned) if pinned else 0.0
        return {"progress": progress, "origin": origin, "causes": causes, "pinned": share}


def window(before: dict[str, Any], after: dict[str, Any], total: int, batches: int) -> Window:
    """The difference of two readings."""
    batch_counts = zip(before["progress"], after["progress"], strict=True)
    causes = {
        cause: (after["causes"][cause] - bytes_before) / total
        for cause, bytes_before in before["causes"].items()
    }
    return Window(
        turns=max(now - then for then, now in batch_counts) / batches,
        origin=(after["origin"] - before["origin"]) / total,
        causes=causes,
        pinned=before["pinned"],
    )


@contextmanager
def job(
    world: harness.World, node: Path, progress: Progress, setting: Setting, number: int
) -> Iterator[subprocess.Popen[str]]:
    """A job that has joined and waits for a line to start."""
    task = {
        "digest": str(world.digest),
        "options": world.options,
        "node": str(node),
        "progress": [str(progress.path), setting.jobs],
        "number": number,
        "batch": setting.batch,
        "compute": setting.compute_of(number),
        "workers": setting.workers,
    }
    command = [sys.executable, "-m", "origin_bytes.job", json.dumps(task)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    packages = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "FOREBAY_AGENT_MEMORY": setting.agent_memory,
        "PYTHONPATH": os.pathsep.join(filter(None, packages)),
    }
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(timeout=10)


def wait_for(jobs: Sequence[subprocess.Popen[str]], progress: Progress, batches: int) -> None:
    """Wait until one of the jobs has yielded ``batches`` batches."""
    deadline = time.monotonic() + EPOCH_SECONDS_MAX
    while max(progress.all()) < batches:
        assert all(one.poll() is None for one in jobs), "a job ended early"
        assert time.monotonic() < deadline, f"an epoch took more than {EPOCH_SECONDS_MAX:.0f} s"
        time.sleep(0.005)


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "a job ended early"
    return line
