"""Processes that are forked while batches of workers are in use."""

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
from harness import CONTENTS, World
from shm_assertions import OF_WORKERS, Workers, mapping_of

import forebay
from forebay._workers import fork_guard, shm_arena

FORK: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
#: Size of a batch, and of the strip of its worker: enough for what PyTorch prefetches.
BATCH_BYTES, STRIP_BYTES = 64 << 10, 512 << 10


@pytest.fixture(autouse=True)
def small_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_arena, "STRIP_BYTES", STRIP_BYTES)


def numbered(samples: list[int]) -> torch.Tensor:
    return torch.full((BATCH_BYTES,), samples[0] % 251, dtype=torch.uint8)


def batches(count: int, **options: Any) -> Iterator[torch.Tensor]:
    items: Any = range(count)
    return iter(Workers(items, 1, collate_fn=numbered, **{**FORK, **options}))


@contextmanager
def forked(run: Callable[[], bool], generations: int = 1) -> Iterator[None]:
    """Fork a child that calls ``run`` when the block has ended, and check its result.

    With ``generations``, the child's last descendant calls it.
    """
    start_read, start_write = os.pipe()
    result_read, result_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for _ in range(1, generations):
                if os.fork() > 0:
                    os._exit(0)
            os.close(start_write)
            os.read(start_read, 1)
            os.write(result_write, b"right" if run() else b"wrong")
        finally:
            os._exit(0)
    os.close(start_read)
    os.close(result_write)
    try:
        yield
    finally:
        os.close(start_write)
        result = os.read(result_read, 5)
        os.close(result_read)
        os.waitpid(child, 0)
    assert result == b"right"


@pytest.mark.parametrize("generations", [1, 2])
def test_a_forked_child_keeps_the_batches_of_its_parent(generations: int) -> None:
    """Also when its parent no longer uses them, so that their slots could be free."""
    arriving = batches(100)
    kept = [next(arriving), next(arriving)]
    with forked(lambda: [set(one.tolist()) for one in kept] == [{0}, {1}], generations):
        kept = []
        assert [int(batch[-1]) for batch in arriving] == list(range(2, 100))


def test_slots_are_freed_when_the_children_have_ended() -> None:
    """Promise 6: memory is bounded for any number of forks while a batch is in use."""
    descriptors = len(os.listdir("/proc/self/fd"))
    for batch in batches(60):
        assert mapping_of(batch.data_ptr()) == OF_WORKERS
        with forked(lambda: True):
            pass
    del batch
    gc.collect()
    fork_guard.free_released()
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_forked_child_does_not_free_slots(world: World) -> None:
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


def test_kept_batches_of_ended_workers_keep_no_other_memory() -> None:
    arriving = batches(40, num_workers=2)
    kept = [next(arriving) for _ in range(3)]
    (arena,) = shm_arena.ARENAS.values()
    memory = os.dup(arena._descriptor)
    del arena

    def used_bytes() -> int:
        return os.fstat(memory).st_blocks * 512

    try:
        for _ in arriving:
            pass
        assert used_bytes() > 3 * BATCH_BYTES, "memory of workers"
        del arriving, _
        gc.collect()
        slack = 2 * 4096  # slots are not aligned to pages
        assert used_bytes() <= 3 * (BATCH_BYTES + slack)
        assert [set(one.tolist()) for one in kept] == [{0}, {1}, {2}]
        with forked(lambda: set(kept[2].tolist()) == {2}):
            del kept[1:]
        assert used_bytes() > BATCH_BYTES + slack, "the child may have used it"
        fork_guard.free_released()
        assert used_bytes() <= BATCH_BYTES + slack
        assert set(kept[0].tolist()) == {0}
    finally:
        os.close(memory)


def test_a_child_does_not_wait_for_a_lock_of_another_thread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That thread does not exist in the child, and will never release the lock."""
    loader = forebay.DataLoader(world.dataset(cache=None), 16, shuffle=True, collate_fn=list)
    is_drawing, may_go_on = threading.Event(), threading.Event()

    prefetch_hint = forebay.Dataset._prefetch_hint

    def blocks(self: forebay.Dataset, items: Any) -> None:
        is_drawing.set()
        may_go_on.wait()

    def in_child() -> bool:
        signal.alarm(60)  # instead of hanging
        monkeypatch.setattr(forebay.Dataset, "_prefetch_hint", prefetch_hint)
        return Counter(item for batch in loader for item in batch) == Counter(CONTENTS)

    with monkeypatch.context() as patched:
        patched.setattr(forebay.Dataset, "_prefetch_hint", blocks)
        thread = threading.Thread(target=lambda: next(iter(loader)))
        thread.start()
        assert is_drawing.wait(60)
        with forked(in_child):
            pass
        may_go_on.set()
        thread.join()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("begins_again", [False, True])
def test_a_forked_child_continues_with_its_own_workers(
    world: World, persistent: bool, begins_again: bool
) -> None:
    """The parent keeps the workers that it has."""
    options: dict[str, Any] = {**FORK, "num_workers": 2, "persistent_workers": persistent}
    dataset = world.dataset(cache=None)
    loader = forebay.DataLoader(dataset, 16, shuffle=True, collate_fn=list, **options)
    arriving = iter(loader)
    items = [*next(arriving), *next(arriving)]

    def gets_all_items() -> bool:
        signal.alarm(60)
        batches = loader if begins_again else arriving
        yielded = [] if begins_again else items
        return Counter([*yielded, *(item for batch in batches for item in batch)]) == Counter(
            CONTENTS
        )

    with forked(gets_all_items):
        pass
    assert Counter([*items, *(item for batch in arriving for item in batch)]) == Counter(CONTENTS)
    assert loader.stats()["workers_restarted"] == 0
    assert len(list(loader)) == 13
