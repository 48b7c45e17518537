"""Killed workers: PyTorch would end the epoch, forebay's loader continues (promise 2)."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from harness import CONTENTS, World
from torch.utils import data

import forebay
from forebay._workers import pool

FORK: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
SPAWN: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "spawn"}
PERSISTENT = {"persistent_workers": True}

#: One warning per death is expected.
pytestmark = pytest.mark.filterwarnings("ignore:DataLoader worker:RuntimeWarning")


def loader_of(dataset: forebay.Dataset, seed: int, **options: Any) -> forebay.DataLoader:
    options = {"batch_size": 16, "shuffle": True, "collate_fn": list, **options}
    return forebay.DataLoader(dataset, generator=torch.Generator().manual_seed(seed), **options)


def restarts(dataset: forebay.Dataset) -> int:
    loader = dataset.stats()["loader"]
    assert loader is not None
    return loader["workers_restarted"]


def kill_workers(count: int) -> None:
    """Kill some of this process's workers, and wait for SIGCHLD here, outside of the loader."""
    for worker in multiprocessing.active_children()[:count]:
        assert worker.pid is not None
        harness.kill(worker.pid)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)


def epoch_with_deaths(loader: forebay.DataLoader, deaths: dict[int, int]) -> list[list[bytes]]:
    """Read an epoch, and kill ``deaths[number]`` workers after batch ``number``."""
    batches = []
    for number, batch in enumerate(loader):
        batches.append(batch)
        kill_workers(deaths.get(number, 0))
    return batches


@pytest.mark.parametrize(
    ("order", "options"),
    [
        ("strict", FORK),
        ("strict", FORK | PERSISTENT),
        ("strict", SPAWN),
        ("substitute", FORK),
        ("substitute", FORK | PERSISTENT),
        ("substitute", SPAWN | PERSISTENT),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_killed_workers_change_nothing(world: World, order: Any, options: Any) -> None:
    """Items, order and later random numbers are the same."""
    undisturbed = options | FORK
    # Spawned workers import torch again, which takes seconds.
    deaths = {2: 1, 6: 2} if undisturbed == options else {4: 1}
    rest: list[dict[int, int]] = [] if options == SPAWN else [{}]
    seen: list[Any] = []
    for workers, killed in ((undisturbed, {}), (options, deaths)):
        # Without a node no item is preferred, so that orders can be compared.
        dataset = world.dataset(cache=None)
        torch.manual_seed(5)
        loader = loader_of(dataset, 7, order=order, **workers)
        epochs = [epoch_with_deaths(loader, epoch) for epoch in [killed, *rest]]
        seen.append([*epochs, torch.rand(3).tolist()])
        assert restarts(dataset) == len(killed)
    assert seen[0] == seen[1]
    for batches in seen[1][:-1]:
        assert Counter(item for batch in batches for item in batch) == Counter(CONTENTS)


def test_every_item_once_with_a_node(slow_world: World) -> None:
    dataset = slow_world.dataset()
    batches = epoch_with_deaths(loader_of(dataset, 1, **FORK), {1: 1, 4: 2, 8: 1, 12: 2})
    assert [len(batch) for batch in batches] == [16] * 12 + [11]
    assert Counter(item for batch in batches for item in batch) == Counter(CONTENTS)
    # Deaths after the last batch do not matter.
    assert restarts(dataset) == 3


def test_persistent_workers_that_die_between_epochs(world: World) -> None:
    dataset = world.dataset(cache=None)
    loader = loader_of(dataset, 1, **FORK, **PERSISTENT)
    epochs = [epoch_with_deaths(loader, {12: 2}) for _ in range(3)]
    for batches in epochs:
        assert Counter(item for batch in batches for item in batch) == Counter(CONTENTS)
    assert restarts(dataset) == 2
    # An unfinished epoch is not continued by the next.
    next(iter(loader))
    assert len(list(loader)) == 13


class KillsWorker:
    """A transform that kills the worker that reads one of the items, the first ``times``."""

    def __init__(self, directory: Path, victim: bytes, times: int) -> None:
        self.directory, self.victim, self.times = directory, victim, times
        directory.mkdir()

    def __call__(self, item: bytes) -> bytes:
        deaths = len(os.listdir(self.directory))
        if item == self.victim and deaths < self.times:
            (self.directory / str(deaths)).touch()
            harness.kill(os.getpid())
        return item


@pytest.mark.parametrize("options", [{}, PERSISTENT, {"in_order": False}], ids=str)
def test_a_worker_dies_while_its_batch_is_awaited(
    world: World, tmp_path: Path, options: Any
) -> None:
    transform = KillsWorker(tmp_path / "deaths", CONTENTS[99], times=2)
    dataset = world.dataset(cache=None, transform=transform)
    loader = loader_of(dataset, 1, **FORK, **options)
    with pytest.warns(RuntimeWarning, match="new workers read its batches again"):
        batches = list(loader)
    assert Counter(item for batch in batches for item in batch) == Counter(CONTENTS)
    assert restarts(dataset) == 2


def test_an_item_that_kills_every_worker_is_an_error(world: World, tmp_path: Path) -> None:
    dataset = world.dataset(
        cache=None, transform=KillsWorker(tmp_path / "deaths", CONTENTS[99], 1000)
    )
    loader = loader_of(dataset, 1, shuffle=False, batch_size=20, **FORK)
    epoch = iter(loader)
    assert [next(epoch) for _ in range(4)] == [CONTENTS[at : at + 20] for at in range(0, 80, 20)]
    with pytest.raises(forebay.WorkerError, match=r"4 workers.*items 80, 81,.* 95 and 4 more;"):
        next(epoch)
    assert issubclass(forebay.WorkerError, RuntimeError), "as PyTorch's error"
    # Earlier batches may arrive after the first deaths; each resets the count.
    assert pool.DEATHS_MAX <= restarts(dataset) <= pool.DEATHS_MAX + 4


def as_tensors(item: bytes) -> list[torch.Tensor]:
    """Tensors of several kinds, small and large."""
    length = torch.tensor([len(item), 1, 2])
    return [length, torch.ones(2, 3).t(), torch.ones(2, requires_grad=True), torch.zeros(5000)]


def test_killed_workers_leave_no_directories(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's workers create one each, for the sockets through which they share tensors."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dataset = world.dataset(cache=None, transform=as_tensors)
    batches: list[list[Any]] = epoch_with_deaths(loader_of(dataset, 1, **FORK), {2: 1, 6: 2})
    lengths = Counter(int(length[0]) for batch in batches for length, *_ in batch)
    assert lengths == Counter(map(len, CONTENTS))
    assert restarts(dataset) == 2
    assert not list(tmp_path.glob("pymp-*"))


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        harness.kill(pid)


class CountingTransform:
    """Counts the items that were read, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def __call__(self, item: bytes) -> bytes:
        with self.path.open("ab") as file:
            file.write(b".")
        return item


def test_half_a_message_of_a_dead_worker_is_not_awaited(world: World, tmp_path: Path) -> None:
    """A batch is larger than a pipe, so workers that are stopped have sent half of one."""
    counting = CountingTransform(tmp_path / "count")
    dataset = world.dataset(cache=None, transform=counting)
    epoch = iter(loader_of(dataset, 1, batch_size=40, **FORK))
    batches = [next(epoch)]
    # Workers have read all their batches; the pipe is full.
    harness.wait_until(lambda: counting.path.stat().st_size == 5 * 40)
    workers = [worker.pid or 0 for worker in multiprocessing.active_children()]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    # This process most likely reads the pipe by then; if not, less is tested.
    timer = threading.Timer(1.0, kill_all, [workers])
    timer.start()
    batches += epoch
    timer.join()
    assert Counter(item for batch in batches for item in batch) == Counter(CONTENTS)
    assert restarts(dataset) == 1


def fails(item: bytes) -> bytes:
    if item == CONTENTS[99]:
        raise RuntimeError("this one cannot be decoded")
    return item


def test_an_error_of_a_transform_does_not_restart_workers(world: World) -> None:
    dataset = world.dataset(cache=None, transform=fails)
    epoch = iter(loader_of(dataset, 1, shuffle=False, batch_size=50, **FORK))
    assert next(epoch) == CONTENTS[:50]
    with pytest.raises(RuntimeError, match="this one cannot be decoded"):
        next(epoch)
    assert list(epoch) == [CONTENTS[100:150], CONTENTS[150:200], CONTENTS[200:]]
    assert restarts(dataset) == 0


def collects_garbage(item: bytes) -> bytes:
    if item in (CONTENTS[0], CONTENTS[50]):
        gc.collect()
    return item


def test_a_forked_copy_of_an_iterator_does_not_end_its_workers(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    """A failed epoch is in a cycle with its traceback; workers fork before it is collected."""
    gc.disable()
    try:
        failed = iter(loader_of(world.dataset(cache=None, transform=fails), 1, **FORK))
        with pytest.raises(RuntimeError, match="this one cannot be decoded"):
            list(failed)
        cycle: list[Any] = [failed]
        cycle.append(cycle)
        workers = multiprocessing.active_children()
        del failed, cycle
        dataset = world.dataset(cache=None, transform=collects_garbage)
        others = loader_of(dataset, 1, shuffle=False, batch_size=50, **FORK)
        assert len(list(others)) == 5
        assert all(worker.is_alive() for worker in workers)
    finally:
        gc.enable()
    gc.collect()
    harness.wait_until(lambda: not any(worker.is_alive() for worker in workers))
    assert "Exception ignored" not in capfd.readouterr().err


def test_killed_workers_with_pinned_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are not pinned, so the pinning thread runs without an accelerator."""
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "current_accelerator": lambda: None,
        "current_device_index": lambda: 0,
        "set_device_index": lambda _: None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.accelerator, name, answer)
    dataset = world.dataset(cache=None)
    loader = loader_of(dataset, 1, pin_memory=True, **FORK)
    batches = epoch_with_deaths(loader, {2: 1, 6: 2})
    assert Counter(item for batch in batches for item in batch) == Counter(CONTENTS)
    assert restarts(dataset) == 2


def test_an_unsupported_pytorch_is_used_unchanged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pool.SUPPORTED, "the tested PyTorch is supported"
    monkeypatch.setattr(pool, "SUPPORTED", False)
    loader = loader_of(world.dataset(cache=None), 1, **FORK)
    epoch = iter(loader)
    assert type(epoch._inner) is data.dataloader._MultiProcessingDataLoaderIter
    assert len(list(epoch)) == 13
