"""What jobs that share a node read from the origin, counted byte by byte, with real processes.

J jobs go through one dataset at once, each a process of its own with its loader and its agent,
around one node. Whenever the one that is ahead has finished an epoch, all counters are read: the
origin's own, and every agent's, which say by what right each byte was read. A **turn** is what the
fastest job reads in an epoch, wherever it began.

`python counting.py table` counts for many jobs and caches, and says which targets are met;
`python counting.py job` is such a job.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import harness
import torch

import forebay
from forebay import _native

#: What agents count by itself; everything else was claimed, which is the way it should be.
CAUSES = ("probe", "outside", "fallback")
#: Chunks of a dataset, and those that rotate if several jobs share it.
CHUNKS, ROTATING = 10, 2
#: A node keeps so much of its capacity free (`docs/node.md`).
SPARE = 0.1
#: What an agent keeps in memory would be a second cache, of which the bound knows nothing.
AGENT_MEMORY = "8MiB"
#: Nothing takes longer, unless it hangs.
PATIENCE = 300.0

#: What the origin may give, of what no order can do without: equal rates, and up to 4 x apart.
EQUAL, APART = 1.02, 1.15


@dataclass(frozen=True)
class Setting:
    """What is counted."""

    jobs: int
    #: What the node can keep, as a share of the dataset; its capacity is larger by what it spares.
    cache: float
    #: How much longer the slowest job computes than the fastest; the others lie in between.
    spread: float = 1.0
    #: Of the job that is ahead; when it has done them, all stop.
    epochs: int = 3
    batch: int = 16
    #: Seconds that the fastest job computes for each batch.
    compute: float = 0.005
    workers: int = 0

    def compute_of(self, job: int) -> float:
        """Seconds that a job computes for each batch; job 0 is the fastest."""
        place = job / max(1, self.jobs - 1)
        return float(self.compute * self.spread**place)

    @property
    def not_held(self) -> float:
        """The share of the dataset that has to be read in a turn: alone, all that does not fit;
        for several jobs, also what rotates.
        """
        if self.jobs == 1 or self.cache >= 1.0:
            return 1.0 - self.cache
        return min(1.0, 1.0 - self.cache + ROTATING / CHUNKS)

    @property
    def target(self) -> float:
        """How much more than that it may be."""
        return EQUAL if self.spread == 1.0 else APART


@dataclass(frozen=True)
class Window:
    """What was read from the origin during some epochs, as shares of the dataset."""

    #: How often the fastest job has gone through the dataset.
    turns: float
    #: By the origin's own count,
    origin: float
    #: and by the agents', by cause; `claimed` is the rest of theirs.
    causes: dict[str, float]
    #: What was held for good when it began.
    held: float

    @property
    def counted(self) -> float:
        """In a turn, all but probes."""
        return (self.origin - self.causes["probe"]) / self.turns

    @property
    def per_turn(self) -> dict[str, float]:
        """By cause, in a turn."""
        return {cause: share / self.turns for cause, share in self.causes.items()}


@dataclass(frozen=True)
class Outcome:
    """What was counted."""

    setting: Setting
    first: Window
    #: All other epochs together.
    later: Window
    #: In the node's words.
    why: str

    def is_met(self, slack: float = 0.0) -> bool:
        """Whether the targets are, or are missed by no more than so much of the dataset."""
        target, not_held = self.setting.target, self.setting.not_held
        return (
            self.first.counted <= target + slack and self.later.counted <= target * not_held + slack
        )


def numbered(items: int, size: int) -> Iterator[bytes]:
    """Items of one size that begin with their number, and are all different."""
    filling = bytes(range(256)) * (size // 256 + 1)
    for item in range(items):
        yield item.to_bytes(8, "little") + filling[: size - 8]


def run(world: harness.World, directory: Path, setting: Setting, size: int, items: int) -> Outcome:
    """Count what the jobs of a setting read of a dataset of ``items`` items of ``size`` bytes."""
    total, batches = size * items, -(-items // setting.batch)
    capacity = int(total * (setting.cache + 0.01) / (1.0 - SPARE))
    with ExitStack() as stack:
        options = ("--capacity", f"{capacity}B", "--memory", "1MiB")
        stack.enter_context(harness.node(directory, *options))
        socket = directory / "node.sock"
        progress = Progress(directory / "progress", setting.jobs)
        jobs = [
            stack.enter_context(job(world, socket, progress, setting, number))
            for number in range(setting.jobs)
        ]
        agents = [Path(json.loads(line_of(one))["agent"]) for one in jobs]
        counts = Counts(world, socket, agents, progress)
        marks = [counts.take()]
        for one in jobs:
            tell(one, "go")
        for epoch in range(setting.epochs):
            ends = (epoch + 1) * batches
            wait_for(jobs, progress, ends)
            marks.append(counts.take())
        described = world.explained(socket)
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
    return Outcome(setting, first, later, (described or {}).get("why", "nobody reports"))


class Progress:
    """How many batches every job has been given, for all to see."""

    def __init__(self, path: Path, jobs: int) -> None:
        self.path, self._jobs = path, jobs
        path.touch()
        with path.open("r+b") as file:
            file.truncate(8 * jobs)
            self._memory = mmap.mmap(file.fileno(), 8 * jobs)

    def all(self) -> tuple[int, ...]:
        return struct.unpack(f"{self._jobs}q", self._memory[:])

    def given(self, job: int, batches: int) -> None:
        struct.pack_into("q", self._memory, 8 * job, batches)


class Counts:
    """Reads all counters at once, or nearly."""

    def __init__(
        self, world: harness.World, socket: Path, agents: Sequence[Path], progress: Progress
    ) -> None:
        self._world, self._socket, self._progress = world, socket, progress
        digest = _native.Digest(world.digest)
        self._layout = _native.Layout(digest)
        self._agents = [_native.Reader(digest, None, agent, "counting") for agent in agents]

    def take(self) -> dict[str, Any]:
        progress, origin = self._progress.all(), self._world.counters()["bytes_sent"]
        sums = Counter[str]()
        for agent in self._agents:
            with suppress(forebay.AgentGone):  # it has yet to be started
                sums.update(agent.stats()["agent"] or {})
        pieces = (self._world.explained(self._socket) or {}).get("pieces", [])
        held = [at for at, piece in enumerate(pieces) if piece == "held"]
        causes = {cause: sums[f"agent_{cause}_bytes"] for cause in CAUSES}
        causes["claimed"] = sums["agent_origin_bytes"] - sum(causes.values())
        share = self._layout.share(held) if held else 0.0
        return {"progress": progress, "origin": origin, "causes": causes, "held": share}


def window(before: dict[str, Any], after: dict[str, Any], total: int, batches: int) -> Window:
    """What came between two counts."""
    gone = zip(before["progress"], after["progress"], strict=True)
    causes = {
        cause: (after["causes"][cause] - bytes_before) / total
        for cause, bytes_before in before["causes"].items()
    }
    return Window(
        turns=max(now - then for then, now in gone) / batches,
        origin=(after["origin"] - before["origin"]) / total,
        causes=causes,
        held=before["held"],
    )


@contextmanager
def job(
    world: harness.World, node: Path, progress: Progress, setting: Setting, number: int
) -> Iterator[subprocess.Popen[str]]:
    """A job that has joined and waits to be told to go on."""
    told = {
        "digest": str(world.digest),
        "options": world.options,
        "node": str(node),
        "progress": [str(progress.path), setting.jobs],
        "number": number,
        "batch": setting.batch,
        "compute": setting.compute_of(number),
        "workers": setting.workers,
    }
    command = [sys.executable, __file__, "job", json.dumps(told)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**os.environ, "FOREBAY_AGENT_MEMORY": AGENT_MEMORY}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(timeout=10)


def wait_for(jobs: Sequence[subprocess.Popen[str]], progress: Progress, batches: int) -> None:
    """Wait until one of the jobs has been given so many batches."""
    deadline = time.monotonic() + PATIENCE
    while max(progress.all()) < batches:
        assert all(one.poll() is None for one in jobs), "a job has ended early"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "a job has ended early"
    return line


def tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def work(told: dict[str, Any]) -> None:
    """One job: epoch after epoch, until standard input ends."""
    number, given = told["number"], 0
    path, jobs = told["progress"]
    progress = Progress(Path(path), jobs)
    dataset = forebay.Dataset(
        told["digest"],
        cache=told["node"],
        storage_options=told["options"],
        job=f"job {number}",
    )
    loader = forebay.DataLoader(
        dataset,
        batch_size=told["batch"],
        shuffle=True,
        collate_fn=numbers,
        num_workers=told["workers"],
        generator=torch.Generator().manual_seed(number),
    )
    say({"agent": str(dataset._job.socket)})
    sys.stdin.readline()
    while True:
        seen = Counter[int]()
        for batch in loader:
            seen.update(batch)
            time.sleep(told["compute"])
            given += 1
            progress.given(number, given)
            if select.select([sys.stdin], [], [], 0)[0]:
                return
        say({"exact": len(seen) == len(dataset) and set(seen.values()) == {1}})


def numbers(batch: list[bytes]) -> list[int]:
    return [int.from_bytes(item[:8], "little") for item in batch]


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def table(told: argparse.Namespace) -> None:
    """A row for each setting, as it is counted."""
    settings = [
        Setting(jobs, cache, spread, told.epochs, told.batch, told.compute * jobs, told.workers)
        for jobs, cache, spread in itertools.product(told.jobs, told.cache, told.spread)
        if jobs > 1 or spread == told.spread[0]
    ]
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="forebay-counting-") as directory:
        origin = Path(directory) / "world"
        with harness.origin(origin, contents=list(numbered(told.items, told.size))) as world:
            if told.format == "text":
                print(HEAD, flush=True)
            for setting in settings:
                place = Path(directory) / f"{len(rows)}"
                outcome = run(world, place, setting, told.size, told.items)
                shutil.rmtree(place)
                rows.append(row(outcome))
                if told.format == "text":
                    print(line(rows[-1]), flush=True)
    if told.format == "json":
        print(json.dumps(rows, indent=2))


HEAD = (
    "jobs  cache  spread   held  first  later  bound  ratio"
    "  claimed  outside  fallback  probes  target  verdict"
)


def row(outcome: Outcome) -> dict[str, Any]:
    """An outcome for people and for scripts: shares of the dataset, those of `later` in a turn."""
    setting, later = outcome.setting, outcome.later
    bound = setting.not_held
    return {
        **{name: asdict(setting)[name] for name in ("jobs", "cache", "spread")},
        "held": later.held,
        "first": outcome.first.counted,
        "later": later.counted,
        "bound": bound,
        "ratio": later.counted / bound if bound else None,
        "first_causes": outcome.first.per_turn,
        "later_causes": later.per_turn,
        "target": setting.target,
        "verdict": "met" if outcome.is_met() else "missed",
        "why": outcome.why,
    }


def line(row: dict[str, Any]) -> str:
    ratio = "    -" if row["ratio"] is None else f"{row['ratio']:5.3f}"
    causes = row["later_causes"]
    return (
        f"{row['jobs']:4}  {row['cache']:5.0%}  {row['spread']:6g}  {row['held']:5.1%}"
        f"  {row['first']:5.3f}  {row['later']:5.3f}  {row['bound']:5.3f}  {ratio}"
        f"  {causes['claimed']:7.3f}  {causes['outside']:7.3f}  {causes['fallback']:8.3f}"
        f"  {causes['probe']:6.3f}  {row['target']:6.2f}  {row['verdict']}"
    )


def share(text: str) -> float:
    """``20%`` or ``0.2``."""
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def several(kind: Callable[[str], Any], text: str) -> list[Any]:
    return [kind(one) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("job", help="one job; only the table starts it")
    one.add_argument("told", type=json.loads)
    all_of_them = commands.add_parser("table", help="count, and say which targets are met")
    lists: list[tuple[str, Callable[[str], Any], str]] = [
        ("jobs", int, "1,2,4,8"),
        ("cache", share, "10%,20%,50%,100%"),
        ("spread", float, "1,4"),
    ]
    for name, kind, default in lists:
        all_of_them.add_argument(
            f"--{name}",
            type=partial(several, kind),
            default=default,
            metavar="A,B",
            help=f"by default {default}".replace("%", "%%"),
        )
    all_of_them.add_argument("--items", type=int, default=3600)
    all_of_them.add_argument("--size", type=int, default=112 << 10, help="bytes of an item")
    all_of_them.add_argument("--epochs", type=int, default=3)
    all_of_them.add_argument("--batch", type=int, default=16)
    all_of_them.add_argument(
        "--compute",
        type=float,
        default=0.01,
        help="seconds for a batch, for each of the jobs: the machine is to keep up with all",
    )
    all_of_them.add_argument("--workers", type=int, default=0, help="of each loader")
    all_of_them.add_argument("--format", choices=["text", "json"], default="text")
    told = parser.parse_args()
    if told.command == "job":
        work(told.told)
    else:
        table(told)


if __name__ == "__main__":
    main()
