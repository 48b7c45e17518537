"""Ctrl-C at any moment ends a job at once and leaves no process, socket or directory behind. A job
that catches it and continues loses no items.

A process that has imported everything forks one job per moment, in a process group of its own, as a
terminal interrupts it. The job ends like any Python program.
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
from forebay._loader.order import Epoch, OrderSampler

#: Moments to try: before the agent starts, while it starts, during epochs, at the end.
MOMENTS = int(os.environ.get("MOMENTS", "8"))
#: Time in which an interrupted job ends, also on a busy machine.
TIMEOUT = 30.0

SCRIPT = """
import json, os, signal, sys
import torch
import forebay

arguments = json.loads(sys.argv[1])

def job(workers, order):
    dataset = forebay.Dataset(arguments["digest"], storage_options=arguments["options"])
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
        job(*json.loads(line))  # until it is interrupted
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
    arguments = {"digest": str(slow_world.digest), "options": slow_world.options}
    command = [sys.executable, "-c", SCRIPT, json.dumps(arguments)]
    errors = (tmp_path / "errors").open("w+")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for moment in range(MOMENTS):
            workers, order = chance.choice([0, 2]), chance.choice(["substitute", "strict"])
            wait = chance.uniform(0.0, 1.5) ** 2
            context = f"seed {seed}, moment {moment}: {workers} workers, {order}, {wait:.3f} s"
            parent.stdin.write(json.dumps([workers, order]) + "\n")
            parent.stdin.flush()
            job = int(parent.stdout.readline())
            assert parent.stdout.readline() == "begins\n", context
            time.sleep(wait)
            began = time.monotonic()
            os.killpg(job, signal.SIGINT)
            code = int(parent.stdout.readline())
            assert code in (1, -signal.SIGINT), f"{context}: exit code {code}"
            assert time.monotonic() - began < TIMEOUT, context
            harness.wait_until(lambda job=job: not harness.of_session(job), TIMEOUT)  # type: ignore[misc]
            harness.wait_until(lambda: not list(temporary.iterdir()), TIMEOUT)
        parent.stdin.close()
    errors.seek(0)
    output = errors.read()
    assert output.count("KeyboardInterrupt") >= MOMENTS, output
    # Without the source lines of tracebacks, which name errors that the code handles.
    messages = "\n".join(line for line in output.splitlines() if not line.startswith("    "))
    for trouble in ("ForebayError", "AgentGone", "leaked", "Exception ignored"):
        assert trouble not in messages, output


# Jobs that catch it, as a notebook does.

WORKERS: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}

#: Functions that are called just before this process forks.
BEFORE_FORKS: list[Callable[[], object]] = []
os.register_at_fork(before=lambda: [function() for function in BEFORE_FORKS])


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
    """The remaining items, and the number of Ctrl-Cs that were caught."""
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
        # When the warning is issued, the old workers have ended and the new ones do not exist.
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", ctrl_c)
        kill_workers(1)
        rest, caught = rest_of(epoch)
    assert caught == 1
    assert Counter(items + rest) == Counter(CONTENTS)


@pytest.mark.filterwarnings("ignore:DataLoader worker:RuntimeWarning")
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
def test_repeated_ctrl_c(world: World, persistent: bool) -> None:
    """Promise 2 for a Ctrl-C at any moment; the state has what was yielded.

    A Ctrl-C between the return of a batch and its assignment loses that batch in any Python code.
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
        assert set(missing.values()) <= {0, 1}, "no item comes twice"
        lost += missing.total()
    assert lost in (0, 16)


ORDERS: list[dict[str, Any]] = [
    {"shuffle": False},
    {"order": "strict"},
    {"order": "substitute"},
    {"shuffle": None, "sampler": range(ITEMS)},
]
NAMES = ["sequential", "strict", "substitute", "sampler"]
ALONE: dict[str, Any] = {"num_workers": 0, "multiprocessing_context": None}


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
def test_ctrl_c_while_a_prefetch_hint_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    dataset = world.dataset()
    epoch = iter(loader_of(dataset, **ALONE, **options))
    monkeypatch.setattr(dataset, "_prefetch_hint", ctrl_c)
    items, caught = rest_of(epoch)
    assert caught > 0
    assert Counter(items) == Counter(CONTENTS)


def test_ctrl_c_while_a_mixture_sends_prefetch_hints(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [world.dataset(), world.dataset()]
    epoch = iter(loader_of(forebay.Mixture([(part, 1.0) for part in parts]), **ALONE))
    for part in parts:
        monkeypatch.setattr(part, "_prefetch_hint", ctrl_c)
    items, caught = rest_of(epoch)
    assert caught > 0
    assert Counter(items) == Counter(2 * CONTENTS)


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
def test_ctrl_c_in_the_last_batch(world: World, options: Any) -> None:
    """PyTorch has drawn all batches by then."""
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


def test_ctrl_c_at_any_bytecode_of_drawing(world: World) -> None:
    """Without workers it is not deferred, so that it may end the sampler."""
    watched = {Epoch.take.__code__, OrderSampler.__iter__.__code__}
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


def test_persistent_workers_survive_an_interrupted_beginning_of_an_epoch(world: World) -> None:
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
def test_ctrl_c_during_a_fork_is_not_lost(
    world: World, monkeypatch: pytest.MonkeyPatch, fork: int
) -> None:
    """Python prints and drops exceptions of its hooks around a fork."""
    forks = iter(range(1, 100))
    loader = loader_of(world.dataset(cache=None))
    functions = [lambda: ctrl_c() if next(forks) == fork else None]
    monkeypatch.setattr(sys.modules[__name__], "BEFORE_FORKS", functions)
    with pytest.raises(KeyboardInterrupt):
        iter(loader)
    assert next(forks) == 3, "it is deferred until all workers exist, so that all are ended"
    harness.wait_until(lambda: not multiprocessing.active_children())


def handles_ctrl_c(_: bytes) -> bool:
    handler = signal.getsignal(signal.SIGINT)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return handler is signal.default_int_handler and signal.SIGINT not in blocked


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_handle_ctrl_c_themselves(world: World, context: str) -> None:
    dataset = world.dataset(cache=None, transform=handles_ctrl_c)
    loader = loader_of(dataset, multiprocessing_context=context, batch_size=100)
    assert all(all(batch) for batch in loader)
    assert handles_ctrl_c(b"")


class SlowToPickle:
    """A transform whose pickling for spawned workers takes long; Ctrl-C is pressed twice."""

    def __call__(self, item: bytes) -> bytes:
        return item

    def __getstate__(self) -> dict[str, Any]:
        ctrl_c()
        ctrl_c()
        time.sleep(2 * TIMEOUT)
        return {}


def test_a_second_ctrl_c_is_not_deferred(world: World) -> None:
    dataset = world.dataset(cache=None, transform=SlowToPickle())
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        iter(loader_of(dataset, multiprocessing_context="spawn"))
    assert time.monotonic() - began < TIMEOUT
