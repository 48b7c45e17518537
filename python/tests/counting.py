"""What jobs that share a node read from the origin, counted byte by byte, with real processes.

J jobs go through one dataset at once, each a process of its own with its loader and its agent,
around one node. Whenever the fastest of them has finished an epoch, all counters are read: the
origin's own, and every agent's, which say by what right each byte was read. `python counting.py`
is such a job.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import torch

import forebay
from forebay import _native
from forebay._processes import binary

#: What agents count by itself; everything else was claimed, which is the way it should be.
CAUSES = ("probe_bytes", "outside_bytes", "fallback_bytes")


def numbered(items: int, size: int) -> Iterator[bytes]:
    """Items of one size that begin with their number, and are all different."""
    filling = bytes(range(256)) * (size // 256 + 1)
    for item in range(items):
        yield item.to_bytes(8, "little") + filling[: size - 8]


@dataclass(frozen=True)
class Setting:
    """What is counted."""

    jobs: int
    #: The node's capacity, as a share of the dataset.
    cache: float
    #: Of the fastest job; the others stop when it does.
    epochs: int = 3
    batch: int = 16
    #: Seconds that the fastest job computes for each batch,
    compute: float = 0.005
    #: and how much longer the slowest does; the others lie in between.
    spread: float = 1.0
    workers: int = 0

    def compute_of(self, job: int) -> float:
        """Seconds that a job computes for each batch; job 0 is the fastest."""
        place = job / max(1, self.jobs - 1)
        return float(self.compute * self.spread**place)


@dataclass(frozen=True)
class Window:
    """What was read from the origin during some epochs of the fastest job."""

    epochs: int
    #: By the origin's own count,
    origin_bytes: int
    #: and by the agents', by cause; `claimed` is the rest of theirs.
    causes: dict[str, int]
    #: The share of the dataset that was held for good when it began.
    held: float

    @property
    def counted(self) -> float:
        """Bytes in an epoch, all but probes."""
        return (self.origin_bytes - self.causes["probe_bytes"]) / self.epochs


@dataclass(frozen=True)
class Outcome:
    """What was counted."""

    dataset_bytes: int
    capacity_bytes: int
    windows: list[Window]
    #: What every job has seen: how often each item was given, by epoch.
    exact: bool
    node: dict[str, int]
    why: str

    def later(self) -> Window:
        """All epochs but the first, together."""
        rest = self.windows[1:]
        causes = Counter[str]()
        for window in rest:
            causes.update(window.causes)
        return Window(
            epochs=len(rest),
            origin_bytes=sum(window.origin_bytes for window in rest),
            causes=dict(causes),
            held=sum(window.held for window in rest) / len(rest),
        )


def run(world: harness.World, directory: Path, setting: Setting, size: int, items: int) -> Outcome:
    """Count what the jobs of a setting read."""
    total = size * items
    capacity = int(total * (setting.cache + 0.01) / 0.9)
    with ExitStack() as stack:
        options = ("--capacity", f"{capacity}B", "--memory", "1MiB")
        stack.enter_context(harness.node(directory, *options))
        socket = directory / "node.sock"
        jobs = [
            stack.enter_context(job(world, socket, setting, number, items))
            for number in range(setting.jobs)
        ]
        agents = [Path(json.loads(line_of(one))["agent"]) for one in jobs]
        counts = Counts(world, socket, agents)
        marks = [counts.take()]
        for one in jobs:
            tell(one, "go")
        for _ in range(setting.epochs):
            said = json.loads(line_of(jobs[0]))
            print("   job 0", said["counts"], flush=True)
            assert said["exact"], "every item once (promise 2)"
            marks.append(counts.take())
        described = explained(world, socket)
        node = status(socket)
        exact = True
        for one in jobs:
            assert one.stdin is not None
            one.stdin.close()
        for one in jobs:
            assert one.stdout is not None
            exact &= all(json.loads(line)["exact"] for line in one.stdout)
            assert one.wait(timeout=60) == 0
    windows = [window(before, after) for before, after in itertools.pairwise(marks)]
    return Outcome(total, capacity, windows, exact, node, described["why"])


class Counts:
    """Reads all counters at once, or nearly."""

    def __init__(self, world: harness.World, socket: Path, agents: Sequence[Path]) -> None:
        self._world, self._socket = world, socket
        digest = _native.Digest(world.digest)
        self._layout = _native.Layout(digest)
        self._agents = [_native.Reader(digest, None, agent, "counting") for agent in agents]

    def take(self) -> dict[str, Any]:
        sums = Counter[str]()
        for agent in self._agents:
            with suppress(forebay.AgentGone):  # it has yet to be started
                sums.update(agent.stats()["agent"] or {})
        pieces = (explained(self._world, self._socket) or {}).get("pieces", [])
        held = [at for at, piece in enumerate(pieces) if piece == "held"]
        return {
            "origin": self._world.counters()["bytes_sent"],
            "held": self._layout.share(held),
            **{name: sums[f"agent_{name}"] for name in (*CAUSES, "origin_bytes")},
            "refused_bytes": sums["agent_puts_refused_bytes"],
        }


def window(before: dict[str, Any], after: dict[str, Any]) -> Window:
    """What came between two counts."""
    more = {name: after[name] - before[name] for name in after if name != "held"}
    causes = {name: more[name] for name in (*CAUSES, "refused_bytes")}
    claimed = more["origin_bytes"] - sum(more[name] for name in CAUSES)
    return Window(1, more["origin"], {**causes, "claimed_bytes": claimed}, before["held"])


def explained(world: harness.World, node: Path) -> Any:
    """How the dataset stands."""
    command = [binary(), "explain", str(world.digest), "--socket", str(node), "--format", "json"]
    told = subprocess.run(command, check=True, capture_output=True, timeout=30)
    return json.loads(told.stdout)


def status(node: Path) -> dict[str, int]:
    """What the node has counted."""
    command = [binary(), "status", "--socket", str(node), "--format", "json"]
    told = subprocess.run(command, check=True, capture_output=True, timeout=30)
    answer: dict[str, int] = json.loads(told.stdout)
    return answer


@contextmanager
def job(
    world: harness.World, node: Path, setting: Setting, number: int, items: int
) -> Iterator[subprocess.Popen[str]]:
    """A job that has joined and waits to be told to go on."""
    told = {
        "digest": str(world.digest),
        "options": world.options,
        "node": str(node),
        "number": number,
        "items": items,
        "batch": setting.batch,
        "compute": setting.compute_of(number),
        "workers": setting.workers,
        "epochs": setting.epochs if number == 0 else 1000,
    }
    command = [sys.executable, __file__, json.dumps(told)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(timeout=10)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "a job has ended early"
    return line


def tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def main(told: dict[str, Any]) -> None:
    """One job: epoch after epoch, until it has done its own or standard input ends."""
    name = f"job {told['number']}"
    dataset = forebay.Dataset(
        told["digest"], cache=told["node"], storage_options=told["options"], job=name
    )
    loader = forebay.DataLoader(
        dataset,
        batch_size=told["batch"],
        shuffle=True,
        collate_fn=numbers,
        num_workers=told["workers"],
        generator=torch.Generator().manual_seed(told["number"]),
    )
    say({"agent": str(dataset._job.socket)})
    sys.stdin.readline()
    ended = select_on_stdin()
    for _ in range(told["epochs"]):
        seen = Counter[int]()
        for batch in loader:
            seen.update(batch)
            time.sleep(told["compute"])
            if ended():
                return
        exact = len(seen) == told["items"] and set(seen.values()) == {1}
        say({"exact": exact, "stats": loader.stats(), "counts": dict(loader._order.counts())})
    # The agent's counters are wanted once more.
    while not ended():
        time.sleep(0.01)


def select_on_stdin() -> Any:
    """Whether the one who started this job has had enough."""
    import select

    return lambda: bool(select.select([sys.stdin], [], [], 0)[0])


def numbers(batch: list[bytes]) -> list[int]:
    return [int.from_bytes(item[:8], "little") for item in batch]


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
