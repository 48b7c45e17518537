"""Pacing: jobs that wait for slower ones lose no items (promises 2 and 5).

The core decides when to wait, and has the tests of that; here it is random.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from harness import CONTENTS, ITEMS, World

import forebay
from forebay._loader.substitute import SubstituteEpoch


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 1},
        {"num_workers": 2, "prefetch_factor": 3},
        {"num_workers": 2, "prefetch_factor": 1, "persistent_workers": True},
        {"num_workers": 2, "drop_last": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_a_job_that_waits_gets_every_item(
    world: World, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], share: float
) -> None:
    chance = random.Random(7)
    answers = list[bool]()

    def should_wait(_: object) -> bool:
        answers.append(chance.random() < share)
        return answers[-1]

    monkeypatch.setattr(SubstituteEpoch, "_is_paced", should_wait)
    loader = forebay.DataLoader(
        world.dataset(), batch_size=10, shuffle=True, collate_fn=list, **options
    )
    whole = ITEMS - ITEMS % 10 if options.get("drop_last") else ITEMS
    for _ in range(3):
        yielded = [item for batch in loader for item in batch]
        assert len(yielded) == whole
        assert len(set(yielded)) == whole
    assert any(answers), "the job has waited"
    if not options["num_workers"]:
        assert loader.stats()["pacing_seconds"] > 0, "without workers there are no other batches"


def test_workers_finish_their_batches_before_a_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While batches are on their way, the loader does not wait, and draws none. Afterwards the same
    number is on its way as before.
    """
    is_behind = False
    monkeypatch.setattr(SubstituteEpoch, "_is_paced", lambda _: is_behind)
    loader = forebay.DataLoader(
        world.dataset(), batch_size=10, shuffle=True, collate_fn=list, num_workers=2
    )
    batches = iter(loader)
    next(batches)
    epoch = loader._order.current
    assert epoch is not None
    is_behind = True
    ahead = len(epoch._drawn) + len(epoch._taken)
    for left in range(ahead - 1, 0, -1):
        next(batches)
        assert len(epoch._drawn) + len(epoch._taken) == left
    assert loader.stats()["pacing_seconds"] == 0
    is_behind = False
    next(batches)
    assert len(epoch._taken) == 4, "two workers with two batches each"


@pytest.mark.parametrize("moment", [1, 3, 5, 7])
def test_ctrl_c_while_workers_are_topped_up(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Promise 2: a job that catches it and continues gets every item.

    More batches are drawn at once than at any other time, and each sends a prefetch hint.
    """
    is_behind = False
    monkeypatch.setattr(SubstituteEpoch, "_is_paced", lambda _: is_behind)
    monkeypatch.setattr(SubstituteEpoch, "_is_managed", True)
    loader = forebay.DataLoader(
        world.dataset(cache=None),
        batch_size=8,
        shuffle=True,
        collate_fn=list,
        num_workers=2,
        prefetch_factor=4,
    )
    batches = iter(loader)
    items = next(batches)
    epoch = loader._order.current
    assert epoch is not None
    is_behind = True
    while len(epoch._drawn) + len(epoch._taken) > 1:
        items += next(batches)
    is_behind = False
    hints, prefetch_hint = 0, forebay.Dataset._prefetch_hint

    def interrupted(dataset: forebay.Dataset, items: Sequence[int]) -> None:
        nonlocal hints
        hints += 1
        if hints == moment:
            signal.raise_signal(signal.SIGINT)
        prefetch_hint(dataset, items)

    monkeypatch.setattr(forebay.Dataset, "_prefetch_hint", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    items += [item for batch in batches for item in batch]
    assert Counter(items) == Counter(CONTENTS)


@pytest.mark.parametrize("workers", [0, 2])
def test_pacing_seconds_are_part_of_stall_seconds(
    world: World, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Also if the wait is interrupted."""
    is_behind = False
    monkeypatch.setattr(SubstituteEpoch, "_is_paced", lambda _: is_behind)
    monkeypatch.setattr(SubstituteEpoch, "_is_managed", True)
    loader = forebay.DataLoader(
        world.dataset(cache=None), 16, shuffle=True, collate_fn=list, num_workers=workers
    )
    batches = iter(loader)
    next(batches)
    epoch = loader._order.current
    assert epoch is not None
    is_behind = True
    while epoch._drawn or epoch._taken:
        next(batches)
    before = loader.stats()["stall_seconds"]
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    stats = loader.stats()
    assert 0.3 < stats["pacing_seconds"] <= stats["stall_seconds"] - before


def test_workers_end_with_their_loader(world: World) -> None:
    """The callbacks of the worker pool must not refer to the loader: a cycle would delay the end of
    workers to a garbage collection at any point of the user's program.
    """
    before = {worker.pid for worker in multiprocessing.active_children()}
    loader = forebay.DataLoader(
        world.dataset(), shuffle=True, collate_fn=list, num_workers=1, persistent_workers=True
    )
    list(loader)
    gc.collect()
    gc.disable()
    try:
        del loader
        assert {worker.pid for worker in multiprocessing.active_children()} <= before
    finally:
        gc.enable()
