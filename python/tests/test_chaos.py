"""Promise 2 with everything dying: two jobs of several ranks, with workers, agents and a node that
is too small for their dataset; whatever a seed says is killed, and whole jobs go on with other
numbers of ranks.

A rank notes every batch together with the state after it, in one write. What was noted counts: a
job that is killed goes on after the last notes of its ranks. `SEEDS=5` tries five schedules.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from harness import World

import forebay
from forebay._processes import binary

#: Ten chunks of 1.5 MiB, of which the node has room for some.
NUMBERED = [f"{item:04}".encode() * (8 << 10) for item in range(480)]
EPOCHS = 3
#: What is killed in an epoch.
EVENTS = 6
#: Nothing takes longer, unless it hangs.
PATIENCE = 120.0
SEEDS = range(int(os.environ.get("SEEDS", "1")))

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def numbered_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    latency = ("--latency", "2ms")
    with harness.origin(tmp_path_factory.mktemp("chaos"), *latency, contents=NUMBERED) as world:
        yield world


def ranks_work(
    world: World,
    node: Path,
    job: str,
    ranks: tuple[int, int],
    states: list[Any],
    notes: Path,
    go_on: Any,
) -> None:
    """One rank, in a process of its own: epoch after epoch, as it is told."""
    os.environ["RANK"], os.environ["WORLD_SIZE"] = map(str, ranks)
    dataset = world.dataset(cache=node, job=job)
    loader = forebay.DataLoader(
        dataset,
        batch_size=8,
        shuffle=True,
        num_workers=2,
        collate_fn=list,
        generator=torch.Generator().manual_seed(5),
    )
    if states:
        loader.load_state_dict(states)
    with notes.open("ab", buffering=0) as noted:

        def note(batch: list[bytes]) -> None:
            state = loader.state_dict()
            what = {
                "epoch": state["epoch"],
                "items": [int(item[:4]) for item in batch],
                "padding": loader._order.counts()["padding"],
                "state": pickle.dumps(state).hex(),
            }
            noted.write(json.dumps(what).encode() + b"\n")

        while True:
            epoch = iter(loader)
            note([])
            for batch in epoch:
                note(batch)
                time.sleep(0.01)
            go_on.send("the epoch is over")
            go_on.recv()


@dataclass
class Rank:
    """A rank's process, as its job knows it."""

    process: Any
    notes: Path
    go_on: Any
    has_ended: bool = False

    def noted(self) -> list[dict[str, Any]]:
        lines = self.notes.read_bytes().split(b"\n")
        return [json.loads(line) for line in lines[:-1]]  # the last one is empty, or torn

    def agents(self) -> list[int]:
        """Found by its arguments: any process of the rank may have started it."""
        wanted = f"--job-pid\0{self.process.pid}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and wanted in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    def workers(self) -> list[int]:
        pid = self.process.pid
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            named = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
            return [
                int(child)
                for child, command in named.items()
                if b"forebay\0" not in command and b"tracker" not in command
            ]
        return []


@dataclass
class Job:
    """A job of some ranks; which of its notes belong to which life is no matter."""

    world: World
    node: Path
    name: str
    directory: Path
    ranks: list[Rank] = field(default_factory=list)
    past: list[Rank] = field(default_factory=list)

    def start(self, world_size: int, states: list[Any]) -> None:
        for rank in range(world_size):
            notes = self.directory / f"{self.name}-{len(self.past) + rank}.notes"
            notes.touch()
            ours, theirs = FORK.Pipe()
            arguments = (self.world, self.node, self.name, (rank, world_size), states, notes)
            process = FORK.Process(target=ranks_work, args=(*arguments, theirs))
            process.start()
            theirs.close()
            self.ranks.append(Rank(process, notes, ours))
        self.past += self.ranks

    def can_go_on(self, epoch: int) -> bool:
        """Whether there are states of all ranks."""
        noted = [rank.noted() for rank in self.ranks]
        return all(notes and notes[-1]["epoch"] == epoch for notes in noted)

    def kill(self) -> list[Any]:
        """Kill all of it; returns the states that it goes on from."""
        for rank in self.ranks:
            for pid in [*rank.workers(), rank.process.pid]:
                with suppress(ProcessLookupError):
                    harness.kill(pid)
            rank.process.join()
            # One that was stopped could not notice that its job has ended.
            for pid in rank.agents():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        last = [noted[-1] for rank in self.ranks if (noted := rank.noted())]
        self.ranks = []
        return [pickle.loads(bytes.fromhex(note["state"])) for note in last]

    def has_ended(self) -> bool:
        """Whether all ranks have seen the end of the epoch."""
        for rank in self.ranks:
            if not rank.has_ended and rank.go_on.poll():
                rank.go_on.recv()
                rank.has_ended = True
            assert rank.has_ended or rank.process.is_alive(), "a rank has failed"
        return all(rank.has_ended for rank in self.ranks)

    def next_epoch(self) -> None:
        for rank in self.ranks:
            rank.has_ended = False
            rank.go_on.send("go on")

    def given(self, epoch: int) -> tuple[Counter[int], int]:
        """How often every item was given in an epoch, and how much of that is padding."""
        items, padding = Counter[int](), 0
        for rank in self.past:
            before = 0
            for note in rank.noted():
                if note["epoch"] == epoch:
                    items.update(note["items"])
                    padding += note["padding"] - before
                before = note["padding"]
        return items, padding


class Node:
    """A node that dies and comes back."""

    OPTIONS = ("--capacity", "10MiB", "--memory", "1MiB")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700)
        self.start()

    @property
    def socket(self) -> Path:
        return self._directory / "node.sock"

    def start(self) -> None:
        command = [binary(), "serve", "--socket", str(self.socket), *self.OPTIONS]
        command += ["--directory", str(self._directory / "blobs")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_every_item_once_whatever_dies(numbered_world: World, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    node = Node(tmp_path / "node")
    jobs = [Job(numbered_world, node.socket, name, tmp_path) for name in ("one", "two")]
    killed = Counter[str]()

    def strike(epoch: int) -> None:
        what = chance.choice(["worker", "worker", "agent", "node", "stopped agent", "job"])
        job = chance.choice(jobs)
        if what == "node":
            node.kill()
            time.sleep(chance.uniform(0.0, 0.5))
            node.start()
        elif what == "job":
            if job.has_ended() or not job.can_go_on(epoch):
                return
            job.start(chance.randint(1, 3), job.kill())
        else:
            rank = chance.choice(job.ranks)
            victims = rank.workers() if what == "worker" else rank.agents()
            if not victims:
                return
            stop = what == "stopped agent"
            with suppress(ProcessLookupError):
                os.kill(chance.choice(victims), signal.SIGSTOP if stop else signal.SIGKILL)
        killed[what] += 1

    try:
        for job in jobs:
            job.start(chance.randint(1, 3), [])
        for epoch in range(EPOCHS):
            deadline = time.monotonic() + PATIENCE
            for _ in range(EVENTS):
                time.sleep(chance.uniform(0.05, 0.5))
                strike(epoch)
            while sum(job.has_ended() for job in jobs) < len(jobs):
                assert time.monotonic() < deadline, f"seed {seed}: it hangs; killed {killed}"
                time.sleep(0.02)
            for job in jobs:
                items, padding = job.given(epoch)
                about = f"seed {seed}, job {job.name}, epoch {epoch}, killed {killed}"
                assert set(items) == set(range(len(NUMBERED))), about
                assert sum(items.values()) == len(NUMBERED) + padding, about
                job.next_epoch()
    finally:
        for job in jobs:
            job.kill()
        node.kill()
    ended = [rank for job in jobs for rank in job.past]
    harness.wait_until(lambda: not any(rank.agents() for rank in ended), PATIENCE)
    assert sum(killed.values()) > EPOCHS * EVENTS / 2
