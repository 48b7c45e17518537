"""Checkpoints: every item exactly once if a job stops in mid-epoch and another continues
(promise 2), whatever its workers had prefetched, with the same or another number of ranks.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from harness import CONTENTS, ITEMS, World

import forebay
from forebay._loader.checkpoint import checksum

ORDERS: list[dict[str, Any]] = [
    {"shuffle": True},
    {"shuffle": True, "order": "strict"},
    {"shuffle": False},
]
NAMES = ["substitute", "strict", "sequential"]
WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2, "prefetch_factor": 3}]


def loader_of(dataset: forebay.Dataset, seed: int = 7, **options: Any) -> forebay.DataLoader:
    options = {"batch_size": 16, "collate_fn": list, **options}
    return forebay.DataLoader(dataset, generator=torch.Generator().manual_seed(seed), **options)


def flat(batches: Iterable[list[bytes]]) -> list[bytes]:
    return [item for batch in batches for item in batch]


def through_torch(state: Any) -> Any:
    """A state after ``torch.save`` and ``torch.load``."""
    file = io.BytesIO()
    torch.save(state, file)
    assert file.tell() < 20_000, "a state is small"
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
@pytest.mark.parametrize("workers", WORKERS, ids=["alone", "workers"])
def test_an_epoch_is_resumed_from_a_checkpoint(world: World, options: Any, workers: Any) -> None:
    # Without a node, so that the order does not depend on the cache.
    dataset = world.dataset(cache=None)
    whole = loader_of(dataset, **options)
    expected = [list(whole), list(whole)]
    first = loader_of(dataset, **options, **workers)
    epoch = iter(first)
    yielded = list(islice(epoch, 5))
    state = through_torch(first.state_dict())
    assert yielded == expected[0][:5]

    # The generator of the second loader may be in any state.
    second = loader_of(dataset, seed=99, **options, **workers)
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert list(second) == expected[0][5:]
    assert list(second) == expected[1], "the next epoch, too"
    # The first loader is not affected.
    assert list(epoch) == expected[0][5:]


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
def test_a_state_between_epochs_begins_the_next(world: World, options: Any) -> None:
    dataset = world.dataset(cache=None)
    whole = loader_of(dataset, **options)
    expected = [list(whole), list(whole)]
    first = loader_of(dataset, **options)
    assert list(first) == expected[0]
    second = loader_of(dataset, seed=99, **options)
    second.load_state_dict(through_torch(first.state_dict()))
    assert list(second) == expected[1]
    fresh = loader_of(dataset, **options)
    third = loader_of(dataset, seed=99, **options)
    third.load_state_dict(through_torch(fresh.state_dict()))
    assert list(third) == expected[0], "a state before the first batch"


def test_a_state_after_the_last_batch_has_no_batches_left(world: World) -> None:
    dataset = world.dataset(cache=None)
    loader = loader_of(dataset, shuffle=True)
    epoch = iter(loader)
    for _ in range(13):
        next(epoch)
    resumed = loader_of(dataset, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == []
    assert len(list(resumed)) == 13


def test_a_job_with_a_cache_is_resumed_many_times(slow_world: World) -> None:
    """The resident items change meanwhile; every item comes once."""
    state, seen, rounds = None, list[bytes](), 0
    while True:
        dataset = slow_world.dataset()
        loader = loader_of(dataset, shuffle=True, batch_size=8, num_workers=2 * (rounds % 2))
        if state is not None:
            loader.load_state_dict(state)
        yielded = list(islice(loader, 6))
        state, rounds = through_torch(loader.state_dict()), rounds + 1
        seen += flat(yielded)
        if len(yielded) < 6:
            break
    assert rounds == 5
    assert Counter(seen) == Counter(CONTENTS)


def loader_whose_second_batch_fails(
    world: World, fails: Callable[[bytes], bytes], workers: dict[str, Any], message: str
) -> tuple[Any, Any, Iterator[Any]]:
    """A dataset, its loader, and the epoch after the error."""
    dataset = world.dataset(cache=None, transform=fails)
    loader = loader_of(dataset, shuffle=False, **workers)
    epoch = iter(loader)
    assert next(epoch) == CONTENTS[:16]
    with pytest.raises(RuntimeError, match=message):
        next(epoch)
    return dataset, loader, epoch


def test_a_batch_whose_error_was_raised_counts_as_yielded(world: World) -> None:
    def fails(item: bytes) -> bytes:
        if item == CONTENTS[20]:
            raise RuntimeError("this one cannot be decoded")
        return item

    for workers in WORKERS:
        failed = loader_whose_second_batch_fails(world, fails, workers, "cannot be decoded")
        dataset, loader, epoch = failed
        assert next(epoch) == CONTENTS[32:48]
        resumed = loader_of(dataset, shuffle=False)
        resumed.load_state_dict(loader.state_dict())
        assert next(iter(resumed)) == CONTENTS[48:64]


def test_stop_iteration_in_a_transform_is_an_error(world: World) -> None:
    """Such as of a `next` without a default; it does not end the epoch."""

    def fails(item: bytes) -> bytes:
        if item in (CONTENTS[20], CONTENTS[-1]):
            next(iter(()))
        return item

    for workers in WORKERS:
        failed = loader_whose_second_batch_fails(world, fails, workers, "StopIteration")
        dataset, loader, epoch = failed
        resumed = loader_of(dataset, shuffle=False)
        resumed.load_state_dict(loader.state_dict())
        assert next(iter(resumed)) == CONTENTS[32:48]
        assert flat(islice(epoch, 10)) == CONTENTS[32:192]
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(epoch)
        assert next(epoch, None) is None


class InterruptedOnce:
    """A transform that raises Ctrl-C at one of the items, once."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, item: bytes) -> bytes:
        if item == CONTENTS[20] and self.times == 0:
            self.times += 1
            raise KeyboardInterrupt
        return item


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
def test_an_interrupted_wait_loses_no_items(world: World, options: Any) -> None:
    transform = InterruptedOnce()
    epoch = iter(loader_of(world.dataset(cache=None, transform=transform), **options))
    seen = list[bytes]()
    while True:
        try:
            seen += next(epoch)
        except KeyboardInterrupt:
            assert transform.times == 1
        except StopIteration:
            break
    assert transform.times == 1
    assert Counter(seen) == Counter(CONTENTS)


def test_a_sampler_of_the_user_is_resumed(world: World) -> None:
    dataset = world.dataset(cache=None)
    items = [(7 * item) % ITEMS for item in range(ITEMS)]
    batches = [items[at : at + 16] for at in range(0, ITEMS, 16)]
    samplers: list[dict[str, Any]] = [
        {"sampler": items, "batch_size": 16},
        {"batch_sampler": batches},
    ]
    for options in samplers:
        first = forebay.DataLoader(dataset, collate_fn=list, num_workers=2, **options)
        epoch = iter(first)
        yielded = list(islice(epoch, 4))
        second = forebay.DataLoader(dataset, collate_fn=list, **options)
        second.load_state_dict(through_torch(first.state_dict()))
        assert flat([*yielded, *second]) == [CONTENTS[item] for item in items]
        assert len(second) == 13
        assert len(list(second)) == 13


@pytest.mark.parametrize("shares", [False, True])
def test_pytorchs_random_samplers_are_resumed_in_any_epoch(world: World, shares: bool) -> None:
    """A part of a dataset, as in the guide."""
    dataset = world.dataset(cache=None)

    def part_of(seed: int, **workers: Any) -> forebay.DataLoader:
        generator = torch.Generator().manual_seed(seed)
        part = torch.utils.data.SubsetRandomSampler(range(100), generator=generator)
        options = {"generator": generator if shares else None, **workers}
        return forebay.DataLoader(dataset, 16, sampler=part, collate_fn=list, **options)

    whole = part_of(3)
    expected = [list(whole) for _ in range(3)]
    first = part_of(3, num_workers=2)
    assert list(first) == expected[0]
    between = part_of(99)
    between.load_state_dict(through_torch(first.state_dict()))
    assert list(between) == expected[1]
    yielded = list(islice(first, 4))
    second = part_of(99)
    second.load_state_dict(through_torch(first.state_dict()))
    assert second.state_dict() == first.state_dict()
    assert [*yielded, *second] == expected[1]
    assert list(second) == expected[2], "the next epoch, too"


@pytest.mark.parametrize("workers", WORKERS, ids=["alone", "workers"])
def test_a_sampler_that_does_not_repeat_its_order_is_refused(world: World, workers: Any) -> None:
    """Promise 2: an error is better than lost and repeated items."""
    dataset = world.dataset(cache=None)

    def part() -> forebay.DataLoader:
        sampler = torch.utils.data.SubsetRandomSampler(range(100))
        return forebay.DataLoader(dataset, 16, sampler=sampler, collate_fn=list, **workers)

    first = part()
    list(islice(first, 4))
    second = part()
    second.load_state_dict(first.state_dict())
    with pytest.raises(forebay.StateError, match="does not repeat the order"):
        next(iter(second))


# Ranks.


def ranks_of(dataset: forebay.Dataset, world_size: int, **options: Any) -> list[forebay.DataLoader]:
    return [
        loader_of(dataset, shuffle=True, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_ranks_share_an_epoch(world: World, world_size: int) -> None:
    """If items do not divide evenly, some are repeated and counted."""
    dataset = world.dataset(cache=None)
    loaders = ranks_of(dataset, world_size)
    epochs = [list(loader) for loader in loaders]
    assert len({len(epoch) for epoch in epochs}) == 1, "all ranks get the same number of batches"
    assert len(epochs[0]) == len(loaders[0])
    padding = sum(loader.stats()["padding"] for loader in loaders)
    assert padding == -ITEMS % world_size
    seen = Counter(item for epoch in epochs for item in flat(epoch))
    assert set(seen) == set(CONTENTS)
    assert sum(seen.values()) == ITEMS + padding
    dropping = [list(loader) for loader in ranks_of(dataset, world_size, drop_last=True)]
    assert {len(epoch) for epoch in dropping} == {ITEMS // world_size // 16}
    seen = Counter(item for epoch in dropping for item in flat(epoch))
    assert max(seen.values()) == 1


def test_ranks_without_a_generator_have_the_same_seed(world: World) -> None:
    dataset = world.dataset(cache=None)
    seen = Counter[bytes]()
    for rank in range(2):
        torch.manual_seed(rank)
        loader = forebay.DataLoader(
            dataset, 16, shuffle=True, rank=rank, world_size=2, collate_fn=list
        )
        seen.update(flat(loader))
    assert set(seen) == set(CONTENTS)
    assert sum(seen.values()) == ITEMS + 1


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2), (2, 2)])
def test_an_epoch_is_resumed_with_another_number_of_ranks(
    world: World, before: int, after: int
) -> None:
    dataset = world.dataset(cache=None)
    seen, states = Counter[bytes](), []
    for rank, loader in enumerate(ranks_of(dataset, before)):
        # Killed ranks are not at the same batch.
        seen.update(flat(islice(loader, 3 + rank % 2)))
        states.append(through_torch(loader.state_dict()))
    resumed = ranks_of(dataset, after, batch_size=8)
    batches = set()
    for loader in resumed:
        loader.load_state_dict(states)
        rest = list(loader)
        batches.add(len(rest))
        seen.update(flat(rest))
    assert len(batches) == 1
    padding = sum(loader.stats()["padding"] for loader in resumed)
    assert set(seen) == set(CONTENTS)
    assert sum(seen.values()) == ITEMS + padding
    assert padding < after


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
def test_a_damaged_state_is_refused(world: World, options: Any) -> None:
    """Whichever field is damaged: to continue would lose or repeat items."""
    dataset = world.dataset(cache=None)
    loader = loader_of(dataset, **options)
    list(islice(loader, 5))
    state = loader.state_dict()
    for name, value in state.items():
        shorter: Any = value[:-1] if isinstance(value, bytes) else 7
        damages: list[Any] = [None, 0, 1.5, "x", b"x", [], shorter]
        for damage in damages:
            if damage != value:
                with pytest.raises(forebay.StateError):
                    loader_of(dataset, **options).load_state_dict({**state, name: damage})
        with pytest.raises(forebay.StateError):
            loader_of(dataset, **options).load_state_dict(
                {kept: value for kept, value in state.items() if kept != name}
            )
    wrong: list[Any] = [None, 7, "state", []]
    for value in wrong:
        with pytest.raises(forebay.StateError):
            loader_of(dataset, **options).load_state_dict(value)
    resorted = dict(sorted(state.items(), reverse=True))
    again = loader_of(dataset, **options)
    again.load_state_dict(resorted)
    assert len(flat(again)) == ITEMS - 80


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
@pytest.mark.parametrize("has_begun", [False, True])
def test_numbers_out_of_range_in_a_state_are_refused(
    world: World, options: Any, has_begun: bool
) -> None:
    """Also if the checksum is correct."""
    dataset = world.dataset(cache=None)
    loader = forebay.DataLoader(dataset, batch_size=16, collate_fn=list, **options)
    if has_begun:
        next(iter(loader))
    state = loader.state_dict()
    names = {"seed", "epoch", "batch", "batches", "generator"} & state.keys()
    for name in [name for name in names if state[name] is not None]:
        for wrong in (-1, 1 << 64):
            made = {**state, name: wrong}
            with pytest.raises(forebay.StateError):
                loader.load_state_dict({**made, "checksum": checksum(made)})


@pytest.mark.parametrize("had_generator", [True, False])
def test_the_strict_order_is_resumed_with_the_same_kind_of_generator(
    world: World, had_generator: bool
) -> None:
    dataset = world.dataset(cache=None)

    def strict(with_generator: bool) -> forebay.DataLoader:
        generator = torch.Generator().manual_seed(5) if with_generator else None
        options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "order": "strict"}
        return forebay.DataLoader(dataset, generator=generator, collate_fn=list, **options)

    loader = strict(had_generator)
    yielded = flat(islice(loader, 5))
    state = loader.state_dict()
    with pytest.raises(forebay.StateError, match="generator="):
        strict(not had_generator).load_state_dict(state)
    again = strict(had_generator)
    again.load_state_dict(state)
    assert Counter(yielded + flat(again)) == Counter(CONTENTS)


@pytest.mark.parametrize("as_list", [True, False])
def test_one_rank_is_resumed_with_another_batch_size(world: World, as_list: bool) -> None:
    dataset = world.dataset(cache=None)
    loader = loader_of(dataset, shuffle=True)
    yielded = flat(islice(loader, 5))
    state = loader.state_dict()
    again = loader_of(dataset, shuffle=True, batch_size=7)
    again.load_state_dict([state] if as_list else state)
    assert Counter(yielded + flat(again)) == Counter(CONTENTS)


@pytest.mark.parametrize("options", [*ORDERS, {"sampler": range(ITEMS)}], ids=[*NAMES, "sampler"])
@pytest.mark.parametrize("dropped", [False, True])
def test_an_epoch_is_resumed_with_the_same_drop_last_only(
    world: World, options: Any, dropped: bool
) -> None:
    dataset = world.dataset(cache=None)
    loader = loader_of(dataset, **options, drop_last=dropped)
    yielded = flat(islice(loader, 5))
    state = loader.state_dict()
    other = loader_of(dataset, **options, drop_last=not dropped)
    with pytest.raises(forebay.StateError, match=f"give drop_last={dropped}"):
        other.load_state_dict(state)
    again = loader_of(dataset, **options, drop_last=dropped)
    again.load_state_dict(state)
    assert len(yielded) + len(flat(again)) == (192 if dropped else ITEMS)


def test_states_of_other_loaders_are_refused(world: World) -> None:
    dataset = world.dataset(cache=None)
    loader = loader_of(dataset, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    packed = world.dataset(
        cache=None, digest=world.build("packed-state.digest", "--layout", "pack")
    )

    def refuse(match: str, wrong: Any, loader: forebay.DataLoader = loader) -> None:
        with pytest.raises(forebay.StateError, match=match):
            loader.load_state_dict(wrong)

    refuse("dataset", state, loader_of(packed, shuffle=True))
    refuse("version 9", {**state, "version": 9})
    refuse("order 'substitute'", state, loader_of(dataset, shuffle=False))
    refuse("not a state", {"model": 1})
    refuse("not a state", [3])
    refuse("no state in the list", [])
    refuse("damaged", {**state, "progress": "text"})
    refuse("damaged", {**state, "seed": None})
    refuse("damaged", {**state, "progress": state["progress"][:-3]})
    flipped = bytearray(state["progress"])
    flipped[40] ^= 1
    refuse(".", {**state, "progress": bytes(flipped)})
    ranks = ranks_of(dataset, 2)
    next(iter(ranks[0]))
    refuse("rank 0, this is rank 1", ranks[0].state_dict(), ranks[1])
    refuse("rank 1 of 2 is missing", ranks[0].state_dict())
    refuse("two states of rank 0", [ranks[0].state_dict()] * 2)
    # The loader is not affected.
    assert len(list(loader)) == 13
    unordered = loader_of(dataset, shuffle=True, num_workers=1, in_order=False)
    with pytest.raises(forebay.StateError, match="in_order"):
        unordered.state_dict()


# Replays.


def test_a_recording_is_replayed_bit_for_bit(slow_world: World) -> None:
    recorded = loader_of(slow_world.dataset(), shuffle=True, num_workers=2)
    first = list(recorded)
    recording = recorded.recording()
    dataset = slow_world.dataset(cache=None)
    again = loader_of(dataset, order="replay", replay=recording, num_workers=2)
    assert len(again) == 13
    assert list(again) == first
    assert list(again) == first, "every epoch"
    epoch = iter(again)
    yielded = list(islice(epoch, 4))
    resumed = loader_of(dataset, order="replay", replay=recording)
    resumed.load_state_dict(through_torch(again.state_dict()))
    assert [*yielded, *resumed] == first
    assert again.recording() != recording, "it is of a part of the epoch"
    assert loader_of(dataset, order="replay", replay=again.recording()) is not None


def test_recordings_that_cannot_be_replayed_are_refused(world: World) -> None:
    dataset = world.dataset(cache=None)
    recorded = loader_of(dataset, shuffle=True)
    with pytest.raises(forebay.StateError, match="record an epoch first"):
        recorded.recording()
    next(iter(recorded))
    recording = recorded.recording()
    with pytest.raises(ValueError, match="batch_size=16"):
        loader_of(dataset, order="replay", replay=recording, batch_size=8)
    with pytest.raises(forebay.StateError):
        loader_of(dataset, order="replay", replay=recording[:-1])
    with pytest.raises(ValueError, match="recording"):
        loader_of(dataset, order="replay")
    with pytest.raises(ValueError, match="recording"):
        loader_of(dataset, shuffle=True, replay=recording)
    with pytest.raises(forebay.StateError, match="only order='substitute'"):
        loader_of(dataset, shuffle=False).recording()
    resumed = loader_of(dataset, shuffle=True)
    resumed.load_state_dict(recorded.state_dict())
    next(iter(resumed))
    with pytest.raises(forebay.StateError, match="resumed"):
        resumed.recording()
