"""Promise 2 under random kills: two jobs of several ranks, with workers, agents and a node that is
too small for their dataset. A seed decides what is killed; killed jobs continue with another number
of ranks.

A rank records every batch and the state after it, in one write. Only recorded batches count: a
killed job continues from the last records of its ranks. `SEEDS=5` tries five schedules.
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
from forebay._runtime.processes import binary

#: Ten chunks of 1.5 MiB, of which the node has space for some.
NUMBERED = [f"{item:04}".encode() * (8 << 10) for item in range(480)]
EPOCHS = 3
#: Kills per epoch.
EVENTS = 6
#: Timeout of an epoch.
TIMEOUT = 120.0
SEEDS = range(int(os.environ.get("SEEDS", "1")))

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def numbered_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    latency = ("--latency", "2ms")
    with harness.origin(tmp_path_factory.mktemp("chaos"), *latency, contents=NUMBERED) as world:
        yield world


def run_rank(
    world: World,
    node: Path,
    job: str,
    ranks: tuple[int, int],
    states: list[Any],
    records: Path,
    control: Any,
) -> None:
    """One rank, in a process of its own: one epoch after each message."""
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
    with records.open("ab", buffering=0) as file:

        def record(batch: list[bytes]) -> None:
            state = loader.state_dict()
            fields = {
                "epoch": state["epoch"],
                "items": [int(item[:4]) for item in batch],
                "padding": loader._order.counts()["padding"],
                "state": pickle.dumps(state).hex(),
            }
            file.write(json.dumps(fields).encode() + b"\n")

        while True:
            epoch = iter(loader)
            record([])
            for batch in epoch:
                record(batch)
                time.sleep(0.01)
            control.send("the epoch is over")
            control.recv()


@dataclass
class Rank:
    """The process of a rank."""

    process: Any
    records: Path
    control: Any
    has_ended: bool = False

    def recorded(self) -> list[dict[str, Any]]:
        lines = self.records.read_bytes().split(b"\n")
        return [json.loads(line) for line in lines[:-1]]  # the last line is empty or incomplete

    def agents(self) -> list[int]:
        """The rank's agents, by their arguments: any of its processes may have started them."""
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
    """A job of some ranks, over all its incarnations."""

    world: World
    node: Path
    name: str
    directory: Path
    ranks: list[Rank] = field(default_factory=list)
    past: list[Rank] = field(default_factory=list)

    def start(self, world_size: int, states: list[Any]) -> None:
        for rank in range(world_size):
            records = self.directory / f"{self.name}-{len(self.past) + rank}.records"
            records.touch()
            ours, theirs = FORK.Pipe()
            arguments = (self.world, self.node, self.name, (rank, world_size), states, records)
            process = FORK.Process(target=run_rank, args=(*arguments, theirs))
            process.start()
            theirs.close()
            self.ranks.append(Rank(process, records, ours))
        self.past += self.ranks

    def can_be_resumed(self, epoch: int) -> bool:
        """Whether all ranks have recorded a state."""
        recorded = [rank.recorded() for rank in self.ranks]
        return all(records and records[-1]["epoch"] == epoch for records in recorded)

    def kill(self) -> list[Any]:
        """Kill all processes; returns the states to resume from."""
        for rank in self.ranks:
            for pid in [*rank.workers(), rank.process.pid]:
                with suppress(ProcessLookupError):
                    harness.kill(pid)
            rank.process.join()
            # A stopped agent does not notice that its job has ended.
            for pid in rank.agents():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        last = [recorded[-1] for rank in self.ranks if (recorded := rank.recorded())]
        self.ranks = []
        return [pickle.loads(bytes.fromhex(record["state"])) for record in last]

    def has_ended(self) -> bool:
        """Whether all ranks have reached the end of the epoch."""
        for rank in self.ranks:
            if not rank.has_ended and rank.control.poll():
                rank.control.recv()
                rank.has_ended = True
            assert rank.has_ended or rank.process.is_alive(), "a rank has failed"
        return all(rank.has_ended for rank in self.ranks)

    def next_epoch(self) -> None:
        for rank in self.ranks:
            rank.has_ended = False
            rank.control.send("continue")

    def yielded(self, epoch: int) -> tuple[Counter[int], int]:
        """How often each item was yielded in an epoch, and how many of these are padding."""
        items, padding = Counter[int](), 0
        for rank in self.past:
            before = 0
            for record in rank.recorded():
                if record["epoch"] == epoch:
                    items.update(record["items"])
                    padding += record["padding"] - before
                before = record["padding"]
        return items, padding


class Node:
    """A node that can be killed and started again."""

    OPTIONS = ("--capacity", "10MiB", "--memory-cache", "1MiB")

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
def test_every_item_once_under_random_kills(
    numbered_world: World, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    node = Node(tmp_path / "node")
    jobs = [Job(numbered_world, node.socket, name, tmp_path) for name in ("one", "two")]
    killed = Counter[str]()

    def try_to_kill(victim: str, job: Job, epoch: int) -> bool:
        """Kill or stop a process of this kind; false if there is none now."""
        if victim == "node":
            node.kill()
            time.sleep(chance.uniform(0.0, 0.5))
            node.start()
        elif victim == "job":
            if job.has_ended() or not job.can_be_resumed(epoch):
                return False
            job.start(chance.randint(1, 3), job.kill())
        else:
            rank = chance.choice(job.ranks)
            pids = rank.workers() if victim == "worker" else rank.agents()
            if not pids:
                return False
            stop = victim == "stopped agent"
            with suppress(ProcessLookupError):
                os.kill(chance.choice(pids), signal.SIGSTOP if stop else signal.SIGKILL)
        return True

    def kill_one(epoch: int) -> None:
        """One event: the first kind of a random order that has a process. A node always runs."""
        victims = ["worker", "worker", "agent", "node", "stopped agent", "job"]
        chance.shuffle(victims)
        job = chance.choice(jobs)
        killed[next(victim for victim in victims if try_to_kill(victim, job, epoch))] += 1

    try:
        for job in jobs:
            job.start(chance.randint(1, 3), [])
        for epoch in range(EPOCHS):
            deadline = time.monotonic() + TIMEOUT
            for _ in range(EVENTS):
                time.sleep(chance.uniform(0.05, 0.5))
                kill_one(epoch)
            while sum(job.has_ended() for job in jobs) < len(jobs):
                assert time.monotonic() < deadline, f"seed {seed}: a job hangs; killed {killed}"
                time.sleep(0.02)
            for job in jobs:
                items, padding = job.yielded(epoch)
                context = f"seed {seed}, job {job.name}, epoch {epoch}, killed {killed}"
                assert set(items) == set(range(len(NUMBERED))), context
                assert sum(items.values()) == len(NUMBERED) + padding, context
                job.next_epoch()
    finally:
        for job in jobs:
            job.kill()
        node.kill()
    ended = [rank for job in jobs for rank in job.past]
    harness.wait_until(lambda: not any(rank.agents() for rank in ended), TIMEOUT)
    assert killed.total() == EPOCHS * EVENTS
