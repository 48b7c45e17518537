"""Losing a node in mid-epoch causes no error, and no stall beyond the deadline (promise 5)."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from harness import World

import forebay
from forebay._runtime import node as runtime_node
from forebay._runtime import processes
from forebay._runtime.node import ensure_node

JOBS = 3
#: Seconds in which a hung process is detected (`docs/design/liveness.md`); then the origin is read.
DEADLINE = 5.0
#: Tolerance for a busy machine, in seconds.
MARGIN = 3.0

NUMBERED = [f"{item:04}".encode() * (8 << 10) for item in range(480)]

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def numbered_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with harness.origin(tmp_path_factory.mktemp("loss"), contents=NUMBERED) as world:
        yield world


def run_job(world: World, node: Path, number: int, results: Any) -> None:
    """A job of two epochs; sends the wait for every batch, and its items."""
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
        began = time.monotonic()
        for batch in loader:
            results.send((time.monotonic() - began, [int(item[:4]) for item in batch]))
            time.sleep(0.05)
            began = time.monotonic()
        results.send("the epoch is over")
    stats = dataset.stats()["agent"]
    assert stats is not None
    results.send(stats["agent_fallbacks"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("loss", [signal.SIGKILL, signal.SIGSTOP], ids=lambda loss: loss.name)
def test_several_jobs_survive_the_loss_of_a_node(
    numbered_world: World, tmp_path: Path, loss: signal.Signals
) -> None:
    with harness.node(tmp_path / "node", "--capacity", "10MiB", "--memory-cache", "1MiB") as node:
        socket = tmp_path / "node" / "node.sock"
        jobs = []
        for number in range(JOBS):
            results, sender = FORK.Pipe(duplex=False)
            process = FORK.Process(target=run_job, args=(numbered_world, socket, number, sender))
            process.start()
            sender.close()
            jobs.append((process, results))
        try:
            waits, fallbacks = list[float](), 0
            yielded = [[Counter[int]()] for _ in jobs]
            for batches in range(20):
                for job, (_, results) in enumerate(jobs):
                    assert results.poll(60)
                    _, items = results.recv()
                    yielded[job][0].update(items)
                if batches == 10:
                    os.kill(node.pid, loss)
            for job, (process, results) in enumerate(jobs):
                while True:
                    assert results.poll(60), "a job hangs"
                    result = results.recv()
                    if isinstance(result, tuple):
                        waits.append(result[0])
                        yielded[job][-1].update(result[1])
                    elif isinstance(result, str):
                        yielded[job].append(Counter())
                    else:
                        fallbacks += result
                        break
                process.join(30)
                assert process.exitcode == 0, "a job failed"
        finally:
            if loss == signal.SIGSTOP:
                os.kill(node.pid, signal.SIGCONT)
            for process, _ in jobs:
                process.kill()
                process.join()
    every = Counter(range(len(NUMBERED)))
    assert yielded == [[every, every, Counter()]] * JOBS, "every item once (promise 2)"
    assert fallbacks > 0, "fallbacks are counted"
    assert max(waits) < DEADLINE + MARGIN


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("hung", ["node", "agent", "both"])
def test_a_hung_process_is_detected_once(
    numbered_world: World, own_node: Path, hung: str, workers: int
) -> None:
    """Reports, requests, batches requested ahead and the agent each have a connection. Their
    timeouts do not add up.
    """
    dataset = numbered_world.dataset()
    loader = forebay.DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=workers, collate_fn=list
    )
    waits, yielded, stopped = list[float](), Counter[int](), list[int]()
    epoch = iter(loader)
    try:
        for number in range(len(loader)):
            began = time.monotonic()
            batch = next(epoch)
            waits.append(time.monotonic() - began)
            yielded.update(int(item[:4]) for item in batch)
            time.sleep(0.02)
            if number == 5:
                if hung != "agent":
                    stopped.append(harness.listener(own_node))
                if hung != "node":
                    stopped.append(harness.listener(harness.agent_socket(dataset)))
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
        assert yielded == Counter(range(len(NUMBERED))), "every item once (promise 2)"
        after = waits[6:]
        assert max(after) < DEADLINE + MARGIN, after
        # Short stalls do not add up, either.
        assert sum(after) < 2 * DEADLINE, after
    finally:
        if hung != "agent":
            os.kill(stopped[0], signal.SIGCONT)
    if hung == "node":
        # Once it continues, it is used again.
        harness.wait_until(lambda: dataset.stats()["node"] is not None, 60)


@pytest.fixture
def held_node(own_node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A binary whose nodes hang before they start, until the file ``released`` exists.

    Each start adds its process number to the file ``started``.
    """
    program = tmp_path / "held"
    program.write_text(
        f"""#!/bin/sh
if [ "$1" = serve ]; then
    echo $$ >> {tmp_path}/started
    for _ in $(seq 600); do [ -e {tmp_path}/released ] && break; sleep 0.1; done
fi
exec {processes.binary()} "$@"
"""
    )
    program.chmod(0o700)
    monkeypatch.setenv("FOREBAY_BIN", str(program))
    yield tmp_path
    (tmp_path / "released").touch()
    # A node that is left behind would outlive the test.
    harness.wait_until(lambda: processes.answers(own_node), 60)


def starts(held_node: Path) -> list[int]:
    return [int(pid) for pid in (held_node / "started").read_text().split()]


def test_a_node_that_hangs_while_it_starts_delays_a_job_once(
    numbered_world: World, own_node: Path, held_node: Path
) -> None:
    """Promise 5: a read waits for the start for at most 5 s, once in all processes of the job."""
    dataset, waits = numbered_world.dataset(), list[float]()

    def read(item: int) -> None:
        began = time.monotonic()
        assert dataset[item] == NUMBERED[item]
        waits.append(time.monotonic() - began)

    with pytest.warns(RuntimeWarning, match="it has not started yet"):
        read(0)
    loader = forebay.DataLoader(dataset, batch_size=16, num_workers=2, collate_fn=list)
    assert [item for batch in loader for item in batch] == NUMBERED
    for item in range(20):
        read(item)
        time.sleep(0.1)
    # Far more than 5 s, for a busy machine, and less than the time that a start may take.
    assert max(waits) < processes.START_SECONDS / 2, waits
    assert len(starts(held_node)) == 1, "no process starts a second node meanwhile"
    (held_node / "released").touch()
    harness.wait_until(lambda: dataset.stats()["node"] is not None, 60)
    assert len(starts(held_node)) == 1, "the node that was slow is used"


def test_a_start_that_hangs_for_long_is_killed_and_repeated(
    own_node: Path, held_node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_node, "WAIT_SECONDS", 1.0)
    with pytest.warns(RuntimeWarning, match="it has not started yet"):
        ensure_node(own_node)
    runtime_node._backoffs.clear()
    with pytest.warns(RuntimeWarning, match="it has not started yet"):
        ensure_node(own_node)
    assert len(starts(held_node)) == 1
    runtime_node._backoffs.clear()
    monkeypatch.setattr(runtime_node, "START_SECONDS", 0.0)
    with pytest.warns(RuntimeWarning, match="it has not started yet"):
        ensure_node(own_node)
    hung, repeated = starts(held_node)
    assert not processes.identity(hung)
    assert processes.identity(repeated)


def test_a_start_that_fails_is_not_repeated_by_every_read(
    own_node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "failing"
    program.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/started\necho full >&2\nexit 2\n")
    program.chmod(0o700)
    monkeypatch.setenv("FOREBAY_BIN", str(program))
    with pytest.warns(RuntimeWarning, match=r"\(full\)"):
        ensure_node(own_node)
    for _ in range(50):
        ensure_node(own_node)
    assert len(starts(tmp_path)) < 10


@contextmanager
def cluster(directory: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Nodes of one list."""
    directory.mkdir(mode=0o700)
    config, names = directory / "nodes.toml", [f"n{number}" for number in range(count)]
    sockets = {name: directory / name / "node.sock" for name in names}
    members = [f'[[nodes]]\nname = "{name}"\nendpoint = "{sockets[name]}"\n' for name in names]
    config.write_text('capacity = "10MiB"\nmemory_cache = "1MiB"\n' + "".join(members))
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                harness.node(directory / name, "--config", str(config), "--name", name)
            )
            for name in names
        ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("count", [3, 5])
def test_several_hung_nodes_stall_a_job_as_one_does(
    numbered_world: World, tmp_path: Path, count: int, workers: int
) -> None:
    """Promise 5: all nodes of a ring hang at once, as behind a switch that dies."""
    with cluster(tmp_path / "ring", count) as nodes:
        dataset = numbered_world.dataset(cache=tmp_path / "ring" / "n0" / "node.sock")
        loader = forebay.DataLoader(
            dataset,
            batch_size=8,
            shuffle=True,
            order="substitute",
            num_workers=workers,
            collate_fn=list,
        )
        waits, yielded = list[float](), Counter[int]()
        epoch = iter(loader)
        try:
            for number in range(len(loader)):
                began = time.monotonic()
                batch = next(epoch)
                waits.append(time.monotonic() - began)
                yielded.update(int(item[:4]) for item in batch)
                time.sleep(0.02)
                if number == 5:
                    for node in nodes:
                        os.kill(node.pid, signal.SIGSTOP)
            # The beginning of an epoch asks all nodes.
            began = time.monotonic()
            list(itertools.islice(loader, 3))
            waits.append(time.monotonic() - began)
        finally:
            for node in nodes:
                os.kill(node.pid, signal.SIGCONT)
    assert yielded == Counter(range(len(NUMBERED))), "every item once (promise 2)"
    after = waits[6:]
    assert sum(wait for wait in after if wait > 0.2) < DEADLINE + MARGIN, after
