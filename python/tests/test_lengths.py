"""``lengths``: batches of similar length, which are less random than a full shuffle (promise 8)."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import harness
import pytest
import torch
from harness import World

import forebay

#: Lengths that are unrelated to the dataset's order.
LENGTHS = [random.Random(item).random() ** 2 * 30 for item in range(600)]
CONTENTS = [f"item {item:04} ".encode() * 20 for item in range(600)]
BATCH = 10


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A dataset of three chunks, whose digest has a column of lengths."""
    directory = tmp_path_factory.mktemp("spoken")
    with harness.origin(directory, contents=CONTENTS) as world:
        rows = "".join(f"{item:05}.bin,{LENGTHS[item]},x\n" for item in range(600))
        (directory / "columns.csv").write_text("object,seconds,name\n" + rows)
        columns = str(directory / "columns.csv")
        world.digest = world.build("spoken.digest", "--chunks", "3", "--columns", columns)
        yield world


def loader_of(dataset: forebay.Dataset, seed: int = 3, **options: Any) -> forebay.DataLoader:
    options = {"batch_size": BATCH, "shuffle": True, "collate_fn": list, **options}
    return forebay.DataLoader(dataset, generator=torch.Generator().manual_seed(seed), **options)


def items(batch: Sequence[bytes]) -> list[int]:
    return [int(content[5:9]) for content in batch]


def padding(batches: Sequence[Sequence[int]]) -> float:
    """The share of padding, if a batch is padded to its longest item."""
    padded = sum(len(batch) * max(LENGTHS[item] for item in batch) for batch in batches)
    return 1 - sum(LENGTHS[item] for batch in batches for item in batch) / padded


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_have_little_padding(spoken: World, workers: int) -> None:
    """Promise 2 holds: each item once per epoch."""
    loader = loader_of(spoken.dataset(), lengths="seconds", num_workers=workers)
    epochs = [[items(batch) for batch in loader] for _ in range(2)]
    for batches in epochs:
        assert sorted(itertools.chain(*batches)) == list(range(600))
        assert padding(batches) < 0.25
    together = [{tuple(sorted(batch)) for batch in batches} for batches in epochs]
    assert len(together[0] & together[1]) < 10, "batches differ from epoch to epoch"
    plain = [items(batch) for batch in loader_of(spoken.dataset())]
    assert padding(plain) > 0.5


def test_lengths_can_be_numbers_of_any_type(spoken: World) -> None:
    dataset = spoken.dataset(cache=None)
    orders = [
        [items(batch) for batch in loader_of(dataset, lengths=lengths)]
        for lengths in ("seconds", LENGTHS, torch.tensor(LENGTHS, dtype=torch.float64))
    ]
    assert orders[0] == orders[1] == orders[2]
    sampler = forebay.Sampler(
        dataset, BATCH, lengths="seconds", generator=torch.Generator().manual_seed(3)
    )
    order = list(sampler)
    assert padding([order[at : at + BATCH] for at in range(0, 600, BATCH)]) < 0.25


def test_an_epoch_is_resumed_from_a_checkpoint(spoken: World) -> None:
    """Promise 2, also with another number of ranks."""
    dataset = spoken.dataset()
    loader = loader_of(dataset, lengths="seconds")
    before = [items(batch) for batch in itertools.islice(loader, 20)]
    state = loader.state_dict()
    again = loader_of(dataset, seed=4, lengths="seconds")
    again.load_state_dict(state)
    after = [items(batch) for batch in again]
    assert sorted(itertools.chain(*before, *after)) == list(range(600))
    assert padding(after) < 0.3
    rest = Counter[int]()
    for rank in range(2):
        part = loader_of(dataset, lengths="seconds", rank=rank, world_size=2)
        part.load_state_dict([state])
        batches = [items(batch) for batch in part]
        assert padding(batches) < 0.4
        rest.update(itertools.chain(*batches))
    assert rest == Counter(itertools.chain(*after))
    with pytest.raises(forebay.StateError, match="the same lengths"):
        loader_of(dataset).load_state_dict(state)


def test_a_recording_is_replayed(spoken: World) -> None:
    dataset = spoken.dataset()
    loader = loader_of(dataset, lengths="seconds")
    batches = [items(batch) for batch in loader]
    recording = loader.recording()
    replayed = loader_of(dataset, lengths="seconds", order="replay", replay=recording)
    assert [items(batch) for batch in replayed] == batches


def test_invalid_lengths_are_refused(spoken: World) -> None:
    dataset = spoken.dataset(cache=None)
    wrong: list[dict[str, Any]] = [
        {"shuffle": False},
        {"order": "strict"},
        {"shuffle": False, "sampler": range(600)},
    ]
    for options in wrong:
        with pytest.raises(ValueError, match="lengths= is for order='substitute'"):
            loader_of(dataset, lengths="seconds", **options)
    with pytest.raises(ValueError, match="one dataset"):
        forebay.DataLoader(forebay.Mixture([(dataset, 1.0)]), shuffle=True, lengths=LENGTHS)
    with pytest.raises(ValueError, match="batch_size=None has none"):
        loader_of(dataset, lengths="seconds", batch_size=None)
    with pytest.raises(ValueError, match="599 lengths for 600 items"):
        loader_of(dataset, lengths=LENGTHS[:-1])
    with pytest.raises(ValueError, match="the length of item 0 is NaN"):
        loader_of(dataset, lengths=[float("nan")] * 600)
    with pytest.raises(ValueError, match="a column of numbers"):
        loader_of(dataset, lengths="name")
    with pytest.raises(KeyError, match="no column `second`"):
        loader_of(dataset, lengths="second")
