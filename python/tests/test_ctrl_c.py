"""Ctrl-C at any moment ends a job at once, and leaves no process, socket or directory behind.
Whoever catches it and goes on has lost nothing.

A process that has imported everything forks a job for every moment, in a process group of its own,
which is what a terminal interrupts. A job ends as any Python program does.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import harness
import pytest
from harness import CONTENTS, ITEMS, World

import forebay
from forebay import _orders

#: Moments that are tried: before the agent is there, while it starts, amidst epochs, at the end.
MOMENTS = int(os.environ.get("MOMENTS", "8"))
#: A job that was interrupted is gone by then, also on a busy machine.
PATIENCE = 30.0

SCRIPT = """
import json, os, signal, sys
import torch
import forebay

told = json.loads(sys.argv[1])

def job(workers, order):
    dataset = forebay.Dataset(told["digest"], storage_options=told["options"])
    print("begins", flush=True)
    loader = forebay.DataLoader(
        dataset, batch_size=16, shuffle=True, order=order, num_workers=workers, collate_fn=list
    )
    while True:
        for batch in loader:
            pass

while line := sys.stdin.readline():
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(os.getpid(), flush=True)
        job(*json.loads(line))  # and ends as it may
        sys.exit("unreachable")
    _, status = os.wait()
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.mark.parametrize("seed", [0])
def test_ctrl_c_at_any_moment(
    slow_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    told = {"digest": str(slow_world.digest), "options": slow_world.options}
    command = [sys.executable, "-c", SCRIPT, json.dumps(told)]
    errors = (tmp_path / "errors").open("w+")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for moment in range(MOMENTS):
            workers, order = chance.choice([0, 2]), chance.choice(["substitute", "strict"])
            wait = chance.uniform(0.0, 1.5) ** 2
            about = f"seed {seed}, moment {moment}: {workers} workers, {order}, {wait:.3f} s"
            parent.stdin.write(json.dumps([workers, order]) + "\n")
            parent.stdin.flush()
            job = int(parent.stdout.readline())
            assert parent.stdout.readline() == "begins\n", about
            time.sleep(wait)
            began = time.monotonic()
            os.killpg(job, signal.SIGINT)
            code = int(parent.stdout.readline())
            assert code in (1, -signal.SIGINT), f"{about}: it ended with {code}"
            assert time.monotonic() - began < PATIENCE, about
            harness.wait_until(lambda job=job: not harness.of_session(job), PATIENCE)  # type: ignore[misc]
            harness.wait_until(lambda: not list(temporary.iterdir()), PATIENCE)
        parent.stdin.close()
    errors.seek(0)
    said = errors.read()
    assert said.count("KeyboardInterrupt") >= MOMENTS, said
    for trouble in ("ForebayError", "AgentGone", "leaked", "Exception ignored"):
        assert trouble not in said, said


# Those who catch it, as a notebook does.

WORKERS: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}

#: What happens just before this process forks.
BEFORE_FORKS: list[Callable[[], object]] = []
os.register_at_fork(before=lambda: [happens() for happens in BEFORE_FORKS])


def ctrl_c(*_: object) -> None:
    signal.raise_signal(signal.SIGINT)


@contextmanager
def ctrl_c_in(seconds: float) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, ctrl_c)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def loader_of(dataset: forebay.Dataset | forebay.Mixture, **options: Any) -> forebay.DataLoader:
    options = {"batch_size": 16, "shuffle": True, "collate_fn": list, **WORKERS, **options}
    return forebay.DataLoader(dataset, **options)


def rest_of(epoch: Iterator[list[bytes]]) -> tuple[list[bytes], int]:
    """All items that still come, and how many Ctrl-Cs were caught on the way."""
    items, caught = list[bytes](), 0
    while True:
        try:
            items += next(epoch)
        except KeyboardInterrupt:
            caught += 1
        except StopIteration:
            return items, caught


def kill_workers(count: int) -> None:
    for worker in multiprocessing.active_children()[:count]:
        assert worker.pid is not None
        harness.kill(worker.pid)


def test_ctrl_c_while_workers_are_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 2: exactly once."""
    epoch = iter(loader_of(world.dataset(cache=None)))
    items = next(epoch)
    with warnings.catch_warnings():
        # By the time it is told, the old workers are gone, and the new ones not there yet.
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", ctrl_c)
        kill_workers(1)
        rest, caught = rest_of(epoch)
    assert caught == 1
    assert Counter(items + rest) == Counter(CONTENTS)


@pytest.mark.filterwarnings("ignore:DataLoader worker:RuntimeWarning")
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
def test_ctrl_c_again_and_again(world: World, persistent: bool) -> None:
    """Promise 2, wherever it comes, with a state that says what was given.

    In Python, what comes just when a batch is handed over takes that batch along.
    """
    chance = random.Random(int(persistent))
    dataset = world.dataset(cache=None)
    loader = loader_of(dataset, persistent_workers=persistent)
    lost = 0
    for deaths in (0, 1, 2, 0, 1):
        epoch = iter(loader)
        items = next(epoch)
        kill_workers(deaths)
        for _ in range(6):
            with suppress(KeyboardInterrupt), ctrl_c_in(chance.uniform(0.0005, 0.06)):
                items += next(epoch)
        resumed = loader_of(dataset, num_workers=0, multiprocessing_context=None)
        resumed.load_state_dict(loader.state_dict())
        rest, _ = rest_of(epoch)
        assert Counter(rest) == Counter(item for batch in resumed for item in batch)
        missing = Counter(CONTENTS)
        missing.subtract(items + rest)
        assert set(missing.values()) <= {0, 1}, "nothing comes twice"
        lost += missing.total()
    assert lost in (0, 16)


ORDERS: list[dict[str, Any]] = [
    {"shuffle": False},
    {"order": "strict"},
    {"order": "substitute"},
    {"shuffle": None, "sampler": range(ITEMS)},
]
NAMES = ["sequential", "strict", "substitute", "own"]
ALONE: dict[str, Any] = {"num_workers": 0, "multiprocessing_context": None}


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
def test_ctrl_c_while_the_agent_is_told_what_comes(
    world: World, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    dataset = world.dataset()
    epoch = iter(loader_of(dataset, **ALONE, **options))
    monkeypatch.setattr(dataset, "want", ctrl_c)
    items, caught = rest_of(epoch)
    assert caught > 0
    assert Counter(items) == Counter(CONTENTS)


def test_ctrl_c_while_the_agents_of_a_mixture_are_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [world.dataset(), world.dataset()]
    epoch = iter(loader_of(forebay.Mixture([(part, 1.0) for part in parts]), **ALONE))
    for part in parts:
        monkeypatch.setattr(part, "want", ctrl_c)
    items, caught = rest_of(epoch)
    assert caught > 0
    assert Counter(items) == Counter(2 * CONTENTS)


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
def test_ctrl_c_in_the_last_batch(world: World, options: Any) -> None:
    """By then PyTorch has drawn all that there is."""
    transformed = list[bytes]()

    def transform(item: bytes) -> bytes:
        transformed.append(item)
        if len(transformed) == ITEMS - 1:
            ctrl_c()
        return item

    dataset = world.dataset(cache=None, transform=transform)
    items, caught = rest_of(iter(loader_of(dataset, **ALONE, **options)))
    assert caught == 1
    assert Counter(items) == Counter(CONTENTS)


def test_ctrl_c_at_any_step_of_the_drawing(world: World) -> None:
    """Without workers nothing is held meanwhile: the sampler may end with it."""
    watched = {_orders.Epoch.take.__code__, _orders.Items.__iter__.__code__}
    dataset = world.dataset(cache=None)
    for moment in itertools.count(1):
        steps = itertools.count(1)

        def traced(
            frame: FrameType, event: str, _: Any, steps: Any = steps, moment: int = moment
        ) -> Any:
            if frame.f_code not in watched:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and next(steps) == moment:
                ctrl_c()
            return traced

        epoch = iter(loader_of(dataset, batch_size=64, **ALONE))
        items = next(epoch)
        before = sys.gettrace()
        sys.settrace(traced)
        try:
            items += next(epoch)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        rest, _ = rest_of(epoch)
        assert Counter(items + rest) == Counter(CONTENTS), f"step {moment}"
    assert moment > 20


def test_persistent_workers_go_on_after_an_epoch_that_never_began(world: World) -> None:
    loader = loader_of(world.dataset(cache=None), persistent_workers=True)
    assert len(list(loader)) == 13
    workers = multiprocessing.active_children()
    for worker in workers:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
    with ctrl_c_in(0.2), pytest.raises(KeyboardInterrupt):
        iter(loader)
    for worker in workers:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGCONT)
    for _ in range(2):
        items = [item for batch in loader for item in batch]
        assert Counter(items) == Counter(CONTENTS)


@pytest.mark.parametrize("fork", [1, 2])
def test_ctrl_c_amidst_a_fork_is_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch, fork: int
) -> None:
    """What is raised in Python's own hooks around a fork, Python prints and forgets."""
    forks = iter(range(1, 100))
    loader = loader_of(world.dataset(cache=None))
    happens = [lambda: ctrl_c() if next(forks) == fork else None]
    monkeypatch.setattr(sys.modules[__name__], "BEFORE_FORKS", happens)
    with pytest.raises(KeyboardInterrupt):
        iter(loader)
    assert next(forks) == 3, "it waits until all workers are there, so that all are ended"
    harness.wait_until(lambda: not multiprocessing.active_children())


def is_open_to_ctrl_c(_: bytes) -> bool:
    handler = signal.getsignal(signal.SIGINT)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return handler is signal.default_int_handler and signal.SIGINT not in blocked


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_hear_of_ctrl_c_themselves(world: World, context: str) -> None:
    dataset = world.dataset(cache=None, transform=is_open_to_ctrl_c)
    loader = loader_of(dataset, multiprocessing_context=context, batch_size=100)
    assert all(all(batch) for batch in loader)
    assert is_open_to_ctrl_c(b"")


class SlowToPickle:
    """A transform that takes its time on the way to spawned workers; people lose patience."""

    def __call__(self, item: bytes) -> bytes:
        return item

    def __getstate__(self) -> dict[str, Any]:
        ctrl_c()
        ctrl_c()
        time.sleep(2 * PATIENCE)
        return {}


def test_a_second_ctrl_c_does_not_wait(world: World) -> None:
    dataset = world.dataset(cache=None, transform=SlowToPickle())
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        iter(loader_of(dataset, multiprocessing_context="spawn"))
    assert time.monotonic() - began < PATIENCE
