"""Jobs that are ahead of others hold back, and nothing is lost by it (promises 2 and 5).

How long they do is decided and tested in the core; here it is decided by dice.
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
from forebay._drawn import SubstituteEpoch


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
def test_whoever_holds_back_is_given_everything(
    world: World, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], share: float
) -> None:
    dice = random.Random(7)
    asked = list[bool]()

    def holds_back(_: object) -> bool:
        asked.append(dice.random() < share)
        return asked[-1]

    monkeypatch.setattr(SubstituteEpoch, "_is_better_drawn_later", holds_back)
    loader = forebay.DataLoader(
        world.dataset(), batch_size=10, shuffle=True, collate_fn=list, **options
    )
    whole = ITEMS - ITEMS % 10 if options.get("drop_last") else ITEMS
    for _ in range(3):
        given = [item for batch in loader for item in batch]
        assert len(given) == whole
        assert len(set(given)) == whole
    assert any(asked), "it was held back"
    if not options["num_workers"]:
        assert loader.stats()["waited_seconds"] > 0, "there is nothing to go on with"


def test_workers_go_on_with_what_they_have(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as batches are on their way nobody waits, and none is drawn; afterwards as many are
    under way as before.
    """
    is_behind = False
    monkeypatch.setattr(SubstituteEpoch, "_is_better_drawn_later", lambda _: is_behind)
    loader = forebay.DataLoader(
        world.dataset(), batch_size=10, shuffle=True, collate_fn=list, num_workers=2
    )
    batches = iter(loader)
    next(batches)
    epoch = loader._order.current
    assert epoch is not None
    is_behind = True
    ahead = len(epoch._ahead) + len(epoch._taken)
    for left in range(ahead - 1, 0, -1):
        next(batches)
        assert len(epoch._ahead) + len(epoch._taken) == left
    assert loader.stats()["waited_seconds"] == 0
    is_behind = False
    next(batches)
    assert len(epoch._taken) == 4, "two workers with two batches each"


@pytest.mark.parametrize("moment", [1, 3, 5, 7])
def test_ctrl_c_while_workers_are_topped_up(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Promise 2: whoever catches it and goes on is given everything. Meanwhile more batches are
    drawn at once than at any other time, and the agent is told of each.
    """
    is_behind = False
    monkeypatch.setattr(SubstituteEpoch, "_is_better_drawn_later", lambda _: is_behind)
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
    while len(epoch._ahead) + len(epoch._taken) > 1:
        items += next(batches)
    is_behind = False
    told, want = 0, forebay.Dataset.want

    def interrupted(dataset: forebay.Dataset, items: Sequence[int]) -> None:
        nonlocal told
        told += 1
        if told == moment:
            signal.raise_signal(signal.SIGINT)
        want(dataset, items)

    monkeypatch.setattr(forebay.Dataset, "want", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    items += [item for batch in batches for item in batch]
    assert Counter(items) == Counter(CONTENTS)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_waited_for_others_is_part_of_all_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Also if it was in vain."""
    is_behind = False
    monkeypatch.setattr(SubstituteEpoch, "_is_better_drawn_later", lambda _: is_behind)
    monkeypatch.setattr(SubstituteEpoch, "_is_managed", True)
    loader = forebay.DataLoader(
        world.dataset(cache=None), 16, shuffle=True, collate_fn=list, num_workers=workers
    )
    batches = iter(loader)
    next(batches)
    epoch = loader._order.current
    assert epoch is not None
    is_behind = True
    while epoch._ahead or epoch._taken:
        next(batches)
    before = loader.stats()["stall_seconds"]
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    stats = loader.stats()
    assert 0.3 < stats["waited_seconds"] <= stats["stall_seconds"] - before


def test_workers_end_with_their_loader(world: World) -> None:
    """Whoever asks the order whether to hold back must not keep the loader: in a cycle, workers
    would be ended late, and anywhere in the user's program.
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
