"""``forebay.Mixture``, ``forebay.IterableDataset`` and ``forebay.Sampler``."""

from __future__ import annotations

import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from harness import CONTENTS, ITEMS, World
from torch.utils import data

import forebay
from forebay._loader.checkpoint import checksum

OTHERS = [f"another {item}".encode() for item in range(60)]


@pytest.fixture
def mixture(world: World, tmp_path: Path) -> forebay.Mixture:
    objects = tmp_path / "others"
    objects.mkdir()
    for item, content in enumerate(OTHERS):
        (objects / f"{item:05}").write_bytes(content)
    others = forebay.Dataset(f"file://{objects}", cache=None)
    return forebay.Mixture([(world.dataset(cache=None), 0.75), (others, 0.25)])


def loader_of(mixture: forebay.Mixture, seed: int = 5, **options: Any) -> forebay.DataLoader:
    generator = torch.Generator().manual_seed(seed)
    options = {"batch_size": 16, "collate_fn": list, **options}
    return forebay.DataLoader(mixture, shuffle=True, generator=generator, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_has_the_proportions(mixture: forebay.Mixture, workers: int) -> None:
    loader = loader_of(mixture, num_workers=workers)
    epochs = [list(loader), list(loader)]
    for batches in epochs:
        for batch in batches[:-1]:
            assert sum(item in OTHERS for item in batch) == 4
        seen = Counter(item for batch in batches for item in batch)
        assert max(seen.values()) == 1, "no item twice in an epoch"
        assert set(OTHERS) <= set(seen), "all items of the dataset that is used up"
        assert len(batches) == len(loader) == 16
        # Until the next item is due from the dataset that is used up.
        assert 240 <= sum(seen.values()) < 244
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mixture_is_resumed_from_a_checkpoint(mixture: forebay.Mixture, workers: int) -> None:
    whole = loader_of(mixture)
    expected = [list(whole), list(whole)]
    first = loader_of(mixture, num_workers=workers)
    yielded = list(islice(first, 5))
    second = loader_of(mixture, seed=99, num_workers=workers)
    second.load_state_dict(first.state_dict())
    assert [*yielded, *second] == expected[0]
    assert list(second) == expected[1]
    other = forebay.Mixture([(part, 0.5) for part in mixture._parts])
    with pytest.raises(forebay.StateError, match="dataset"):
        loader_of(other).load_state_dict(first.state_dict())
    with pytest.raises(forebay.StateError, match="batch_size=16"):
        loader_of(mixture, batch_size=4).load_state_dict(first.state_dict())


def test_the_parts_of_a_mixture_can_be_an_iterator(mixture: forebay.Mixture) -> None:
    again = forebay.Mixture(zip(mixture._parts, mixture._weights, strict=True))
    assert again._id == mixture._id
    assert list(loader_of(again)) == list(loader_of(mixture))


def test_invalid_states_of_a_mixture_are_refused(mixture: forebay.Mixture) -> None:
    loader = loader_of(mixture)
    next(iter(loader))
    state = loader.state_dict()
    wrong: list[dict[str, Any]] = [
        {"drawn": ["a", None]},
        {"drawn": [-1, 4]},
        {"drawn": [1 << 64, 4]},
        {"drawn": [12]},
        {"parts": [1, 2]},
        {"parts": [{}, {}]},
        {"parts": [{**part, "epoch": 1 << 64} for part in state["parts"]]},
    ]
    for fields in wrong:
        made = {**state, **fields}
        with pytest.raises(forebay.StateError):
            loader_of(mixture).load_state_dict({**made, "checksum": checksum(made)})


def test_ranks_of_a_mixture_get_the_same_number_of_batches(mixture: forebay.Mixture) -> None:
    epochs = [list(loader_of(mixture, rank=rank, world_size=2)) for rank in range(2)]
    assert len(epochs[0]) == len(epochs[1])
    seen = Counter(item for epoch in epochs for batch in epoch for item in batch)
    assert max(seen.values()) == 1
    assert set(OTHERS) <= set(seen)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_a_mixture_is_resumed_with_another_number_of_ranks(
    mixture: forebay.Mixture, before: int, after: int
) -> None:
    """Promise 2, as for one dataset: no item twice, and all items of the part that is used up."""
    first = [loader_of(mixture, rank=rank, world_size=before) for rank in range(before)]
    seen = [item for loader in first for batch in islice(loader, 3) for item in batch]
    states = [loader.state_dict() for loader in first]
    second = [loader_of(mixture, rank=rank, world_size=after) for rank in range(after)]
    for loader in second:
        loader.load_state_dict(states)
    epochs = [list(loader) for loader in second]
    assert len({len(epoch) for epoch in epochs}) == 1, "ranks get the same number of batches"
    seen += [item for epoch in epochs for batch in epoch for item in batch]
    padding = sum(loader.stats()["padding"] for loader in second)
    assert len(seen) - padding <= len(set(seen))
    assert set(OTHERS) <= set(seen)
    if before > 1:
        with pytest.raises(forebay.StateError, match="rank 1 of 2 is missing"):
            second[0].load_state_dict(states[0])


def test_a_mixture_takes_part_in_the_rotation_of_its_parts(world: World) -> None:
    parts = [world.dataset(), world.dataset()]
    loader = loader_of(forebay.Mixture([(part, 1.0) for part in parts]))
    for _ in loader:
        time.sleep(0.05)
    stats = loader.stats()
    assert stats["reports"] > 1
    assert stats["drawable_share"] == 1.0, "the node has space for everything"
    assert stats["shuffle_quality"] is None
    with pytest.raises(forebay.StateError, match="a mixture is not recorded"):
        loader.recording()


def test_a_probe_of_a_mixture_reads_past_the_cache(world: World, own_node: Path) -> None:
    """Promise 3, as for one dataset; the other items of the batch come from the cache.

    The time of the probe is reported.
    """
    parts = [world.dataset(), world.dataset()]
    loader = loader_of(forebay.Mixture([(part, 1.0) for part in parts]))
    for _ in range(30):
        items = [item for batch in loader for item in batch]
        assert Counter(items) == Counter(2 * CONTENTS)
        jobs = world.explained(own_node)["jobs"]
        if all(job["miss_s"] for job in jobs):
            break
    assert len(jobs) == 2
    # A batch has several items of each part, so one item took less than the batch.
    loaded = loader.stats()
    took = (loaded["stall_seconds"] + loaded["compute_seconds"]) / loaded["batches"]
    for job in jobs:
        assert 0 < job["miss_s"] < took
    agents = [part.stats()["agent"] or {} for part in parts]
    assert sum(agent["agent_probes"] for agent in agents) == loader.stats()["probes"]


def test_invalid_mixtures_are_refused(mixture: forebay.Mixture) -> None:
    with pytest.raises(TypeError, match=r"Mixture\(\[\(a, 0.7\), \(b, 0.3\)\]\)"):
        forebay.Mixture(mixture._parts)  # type: ignore[arg-type]
    part = mixture._parts[0]
    with pytest.raises(ValueError, match="give a number above 0"):
        forebay.Mixture([(part, 0.0)])
    weights: list[Any] = [float("inf"), float("nan"), 10**400, "0.7", None, [1]]
    for weight in weights:
        with pytest.raises(ValueError, match="give a number above 0"):
            forebay.Mixture([(part, 1.0), (part, weight)])
    with pytest.raises(ValueError, match="too large"):
        forebay.Mixture([(part, 1e308), (part, 1e308)])
    wrong: list[Any] = [[([1, 2], 1.0)], [], iter([]), [part], part]
    for parts in wrong:
        with pytest.raises(TypeError, match="Datasets"):
            forebay.Mixture(parts)
    with pytest.raises(ValueError, match="shuffle=True"):
        forebay.DataLoader(mixture)
    with pytest.raises(IndexError):
        mixture[10_000]
    assert mixture[ITEMS] == OTHERS[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_and_ranks_share_an_iterable(world: World, workers: int, shuffle: bool) -> None:
    dataset, seen = world.dataset(cache=None), list[bytes]()
    for rank in range(2):
        items = forebay.IterableDataset(dataset, shuffle=shuffle, rank=rank, world_size=2)
        batches = data.DataLoader(items, batch_size=8, num_workers=workers, collate_fn=list)
        seen += [item for batch in batches for item in batch]
    assert Counter(seen) == Counter(CONTENTS)
    even = [
        len(list(forebay.IterableDataset(dataset, is_even=True, rank=rank, world_size=2)))
        for rank in range(2)
    ]
    assert even == [ITEMS // 2] * 2


def test_an_iterable_is_resumed_from_a_checkpoint(world: World) -> None:
    dataset = world.dataset(cache=None)
    items = forebay.IterableDataset(dataset, shuffle=True, seed=4)
    expected = [list(items), list(items)]
    assert expected[0] != expected[1]
    assert Counter(expected[1]) == Counter(CONTENTS)
    items.set_epoch(0)
    yielded = list(islice(items, 100))
    again = forebay.IterableDataset(dataset, shuffle=True, seed=4)
    again.load_state_dict(items.state_dict())
    assert again.state_dict() == items.state_dict()
    assert [*yielded, *again] == expected[0]
    with pytest.raises(forebay.StateError):
        again.load_state_dict({"version": 1, "dataset": "another"})


def test_the_sampler_with_pytorchs_loader(world: World, own_node: Path) -> None:
    dataset: Any = world.dataset()
    sampler = forebay.Sampler(dataset, 16, generator=torch.Generator().manual_seed(1))
    loader = data.DataLoader(dataset, 16, sampler=sampler, num_workers=2, collate_fn=list)
    epochs = [[item for batch in loader for item in batch] for _ in range(2)]
    assert Counter(epochs[0]) == Counter(epochs[1]) == Counter(CONTENTS)
    assert epochs[0] != epochs[1]
    assert len(loader) == 13
    assert harness.listener(own_node)
    with pytest.raises(ValueError, match="1 or more"):
        forebay.Sampler(dataset, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sampler_refuses_to_give_a_state(world: World, workers: int) -> None:
    """Promise 2: an error is better than lost and repeated items."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    dataset: Any = world.dataset(cache=None)
    loader = stateful.StatefulDataLoader(
        dataset, 16, sampler=forebay.Sampler(dataset, 16), num_workers=workers, collate_fn=list
    )
    with pytest.raises(forebay.StateError, match=r"resume with forebay\.DataLoader"):
        loader.state_dict()


@pytest.mark.parametrize("persistent", [False, True])
def test_every_epoch_of_an_iterable_has_an_order_of_its_own(world: World, persistent: bool) -> None:
    items = forebay.IterableDataset(world.dataset(cache=None), shuffle=True, seed=3)
    without_workers = [list(items) for _ in range(3)]
    assert len(set(map(tuple, without_workers))) == 3
    items = forebay.IterableDataset(world.dataset(cache=None), shuffle=True, seed=3)
    loader = torch.utils.data.DataLoader(
        items, batch_size=None, num_workers=2, persistent_workers=persistent
    )
    with_workers = [list(loader) for _ in range(3)]
    # Two workers take turns, so the order is the same as without workers.
    assert with_workers == without_workers
    items.set_epoch(1)
    assert list(loader) == without_workers[1]


def test_an_iterable_is_resumed_with_the_same_arguments_only(world: World) -> None:
    """Promise 2: another order or share would lose items and repeat others."""
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "rank": 0, "world_size": 2}

    def iterable(**others: Any) -> forebay.IterableDataset:
        return forebay.IterableDataset(world.dataset(cache=None), **{**options, **others})

    begun = iterable()
    yielded = list(islice(begun, 20))
    state = begun.state_dict()
    for others in ({"seed": 4}, {"shuffle": False}, {"is_even": True}):
        with pytest.raises(forebay.StateError, match="seed"):
            iterable(**others).load_state_dict(state)
    for others in ({"rank": 1}, {"world_size": 3}):
        another = iterable(**others)
        another.load_state_dict(state)
        with pytest.raises(forebay.StateError, match="another share"):
            next(iter(another))
    again = iterable()
    again.load_state_dict(state)
    assert Counter([*yielded, *again, *iterable(rank=1)]) == Counter(CONTENTS)
