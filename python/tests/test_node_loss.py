"""Promise 5: losing a node in mid-epoch costs no job an error, nor a stall beyond the deadline."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from harness import World

import forebay

JOBS = 3
#: Whatever hangs is found out within so many seconds (`docs/node.md`); then the origin is read.
DEADLINE = 5.0
#: What a busy machine may add to it.
MARGIN = 3.0

NUMBERED = [f"{item:04}".encode() * (8 << 10) for item in range(480)]

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def numbered_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with harness.origin(tmp_path_factory.mktemp("losing"), contents=NUMBERED) as world:
        yield world


def work(world: World, node: Path, number: int, tell: Any) -> None:
    """A job of two epochs; says how long every batch was waited for, and what it was given."""
    dataset = world.dataset(cache=node, job=f"job {number}")
    loader = forebay.DataLoader(
        dataset,
        batch_size=8,
        shuffle=True,
        num_workers=number % 2,
        collate_fn=list,
        generator=torch.Generator().manual_seed(number),
    )
    for _ in range(2):
        asked_at = time.monotonic()
        for batch in loader:
            tell.send((time.monotonic() - asked_at, [int(item[:4]) for item in batch]))
            time.sleep(0.05)
            asked_at = time.monotonic()
        tell.send("the epoch is over")
    stats = dataset.stats()["agent"]
    assert stats is not None
    tell.send(stats["agent_fallbacks"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("loss", [signal.SIGKILL, signal.SIGSTOP], ids=lambda loss: loss.name)
def test_a_node_is_lost_under_several_jobs(
    numbered_world: World, tmp_path: Path, loss: signal.Signals
) -> None:
    with harness.node(tmp_path / "node", "--capacity", "10MiB", "--memory", "1MiB") as node:
        socket = tmp_path / "node" / "node.sock"
        jobs = []
        for number in range(JOBS):
            told, tell = FORK.Pipe(duplex=False)
            process = FORK.Process(target=work, args=(numbered_world, socket, number, tell))
            process.start()
            tell.close()
            jobs.append((process, told))
        try:
            waits, fallbacks = list[float](), 0
            given = [[Counter[int]()] for _ in jobs]
            for batches in range(20):
                for job, (_, told) in enumerate(jobs):
                    assert told.poll(60)
                    _, items = told.recv()
                    given[job][0].update(items)
                if batches == 10:
                    os.kill(node.pid, loss)
            for job, (process, told) in enumerate(jobs):
                while True:
                    assert told.poll(60), "a job hangs"
                    said = told.recv()
                    if isinstance(said, tuple):
                        waits.append(said[0])
                        given[job][-1].update(said[1])
                    elif isinstance(said, str):
                        given[job].append(Counter())
                    else:
                        fallbacks += said
                        break
                process.join(30)
                assert process.exitcode == 0, "no job fails"
        finally:
            if loss == signal.SIGSTOP:
                os.kill(node.pid, signal.SIGCONT)
            for process, _ in jobs:
                process.kill()
                process.join()
    every = Counter(range(len(NUMBERED)))
    assert given == [[every, every, Counter()]] * JOBS, "every item once (promise 2)"
    assert fallbacks > 0, "and it is counted"
    assert max(waits) < DEADLINE + MARGIN


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("hung", ["node", "agent", "both"])
def test_whatever_hangs_is_found_out_once(
    numbered_world: World, own_node: Path, hung: str, workers: int
) -> None:
    """Report, request and the batch that was asked for ahead each have a connection, and so has the
    agent: they do not wait one after the other.
    """
    dataset = numbered_world.dataset()
    loader = forebay.DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=workers, collate_fn=list
    )
    waits, given, stopped = list[float](), Counter[int](), list[int]()
    epoch = iter(loader)
    try:
        for number in range(len(loader)):
            asked_at = time.monotonic()
            batch = next(epoch)
            waits.append(time.monotonic() - asked_at)
            given.update(int(item[:4]) for item in batch)
            time.sleep(0.02)
            if number == 5:
                if hung != "agent":
                    stopped.append(harness.listener(own_node))
                if hung != "node":
                    stopped.append(harness.listener(harness.agent_socket(dataset)))
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
        assert given == Counter(range(len(NUMBERED))), "every item once (promise 2)"
        after = waits[6:]
        assert max(after) < DEADLINE + MARGIN, after
        # Nor do many short stalls add up.
        assert sum(after) < 2 * DEADLINE, after
    finally:
        if hung != "agent":
            os.kill(stopped[0], signal.SIGCONT)
    if hung == "node":
        # Once it goes on, it is used again.
        harness.wait_until(lambda: dataset.stats()["node"] is not None, 60)
