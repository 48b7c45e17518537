"""Batches from workers, and processes that are forked while they are in use."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from handing import OF_WORKERS, Workers, lies_in
from harness import CONTENTS, World

import forebay
from forebay import _forks, _handover

FORK: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
#: What a batch holds, and the memory of its worker: enough for what PyTorch prefetches.
BATCH_BYTES, STRIP_BYTES = 64 << 10, 512 << 10


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_handover, "STRIP_BYTES", STRIP_BYTES)


def numbered(samples: list[int]) -> torch.Tensor:
    return torch.full((BATCH_BYTES,), samples[0] % 251, dtype=torch.uint8)


def batches(count: int, **options: Any) -> Iterator[torch.Tensor]:
    items: Any = range(count)
    return iter(Workers(items, 1, collate_fn=numbered, **{**FORK, **options}))


@contextmanager
def forked(run: Callable[[], bool], generations: int = 1) -> Iterator[None]:
    """A child that does something when this process has done what it does meanwhile; or a child of
    a child that has ended.
    """
    going, go = os.pipe()
    telling, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for _ in range(1, generations):
                if os.fork() > 0:
                    os._exit(0)
            os.close(go)
            os.read(going, 1)
            os.write(tell, b"right" if run() else b"wrong")
        finally:
            os._exit(0)
    os.close(going)
    os.close(tell)
    try:
        yield
    finally:
        os.close(go)
        told = os.read(telling, 5)
        os.close(telling)
        os.waitpid(child, 0)
    assert told == b"right"


@pytest.mark.parametrize("generations", [1, 2])
def test_a_forked_child_keeps_the_batches_that_it_was_given(generations: int) -> None:
    """Also when its parent has let go of them, and their places would be free."""
    arriving = batches(100)
    kept = [next(arriving), next(arriving)]
    with forked(lambda: [set(one.tolist()) for one in kept] == [{0}, {1}], generations):
        kept = []
        assert [int(batch[-1]) for batch in arriving] == list(range(2, 100))


def test_places_are_free_again_when_no_child_is_left() -> None:
    """Promise 6: bounded, however often a process forks while it has a batch."""
    descriptors = len(os.listdir("/proc/self/fd"))
    for batch in batches(60):
        assert lies_in(batch.data_ptr()) == OF_WORKERS
        with forked(lambda: True):
            pass
    del batch
    gc.collect()
    _forks.settle()
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_forked_child_lets_go_of_nothing(world: World) -> None:
    options: dict[str, Any] = {**FORK, "num_workers": 2}
    loader = forebay.DataLoader(world.dataset(views=True), 8, collate_fn=list, **options)
    arriving = iter(loader)
    kept = next(arriving)
    child = os.fork()
    if child == 0:
        del kept
        os._exit(0)
    os.waitpid(child, 0)
    for _ in arriving:
        assert [bytes(item) for item in kept] == CONTENTS[:8]


def test_what_is_kept_of_ended_workers_keeps_nothing_else() -> None:
    arriving = batches(40, num_workers=2)
    kept = [next(arriving) for _ in range(3)]
    (arena,) = _handover._ARENAS.values()
    memory = os.dup(arena._descriptor)
    del arena

    def held() -> int:
        return os.fstat(memory).st_blocks * 512

    try:
        for _ in arriving:
            pass
        assert held() > 3 * BATCH_BYTES, "what workers have used"
        del arriving, _
        gc.collect()
        slack = 2 * 4096  # places need not begin with a page
        assert held() <= 3 * (BATCH_BYTES + slack)
        assert [set(one.tolist()) for one in kept] == [{0}, {1}, {2}]
        with forked(lambda: set(kept[2].tolist()) == {2}):
            del kept[1:]
        assert held() > BATCH_BYTES + slack, "a child might have had it"
        _forks.settle()
        assert held() <= BATCH_BYTES + slack
        assert set(kept[0].tolist()) == {0}
    finally:
        os.close(memory)


def test_a_child_does_not_wait_for_what_another_thread_was_doing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That thread is not there, and will never open its lock."""
    loader = forebay.DataLoader(world.dataset(cache=None), 16, shuffle=True, collate_fn=list)
    is_drawing, may_go_on = threading.Event(), threading.Event()

    want = forebay.Dataset.want

    def waits(self: forebay.Dataset, items: Any) -> None:
        is_drawing.set()
        may_go_on.wait()

    def in_child() -> bool:
        signal.alarm(60)  # or it would hang for ever
        monkeypatch.setattr(forebay.Dataset, "want", want)
        return Counter(item for batch in loader for item in batch) == Counter(CONTENTS)

    with monkeypatch.context() as patched:
        patched.setattr(forebay.Dataset, "want", waits)
        thread = threading.Thread(target=lambda: next(iter(loader)))
        thread.start()
        assert is_drawing.wait(60)
        with forked(in_child):
            pass
        may_go_on.set()
        thread.join()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("begins_anew", [False, True])
def test_a_forked_child_goes_on_with_workers_of_its_own(
    world: World, persistent: bool, begins_anew: bool
) -> None:
    """And its parent with those that it has."""
    options: dict[str, Any] = {**FORK, "num_workers": 2, "persistent_workers": persistent}
    dataset = world.dataset(cache=None)
    loader = forebay.DataLoader(dataset, 16, shuffle=True, collate_fn=list, **options)
    arriving = iter(loader)
    items = [*next(arriving), *next(arriving)]

    def is_given_all() -> bool:
        signal.alarm(60)
        batches = loader if begins_anew else arriving
        given = [] if begins_anew else items
        return Counter([*given, *(item for batch in batches for item in batch)]) == Counter(
            CONTENTS
        )

    with forked(is_given_all):
        pass
    assert Counter([*items, *(item for batch in arriving for item in batch)]) == Counter(CONTENTS)
    assert loader.stats()["workers_restarted"] == 0
    assert len(list(loader)) == 13
