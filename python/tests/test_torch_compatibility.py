"""``forebay.DataLoader`` honours the arguments of PyTorch's loader."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections import Counter
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import BYTES, CONTENTS, ITEMS, World
from torch.utils import data

import forebay

ORDERS: list[dict[str, Any]] = [
    {"shuffle": True},
    {"shuffle": True, "order": "strict"},
    {"shuffle": False},
]
NAMES = ["substitute", "strict", "sequential"]


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
def test_batch_sizes_are_checked(world: World, options: Any) -> None:
    dataset = world.dataset(cache=None)
    for size in (0, -3):
        with pytest.raises(ValueError, match=f"batch_size={size}; give 1 or more"):
            forebay.DataLoader(dataset, batch_size=size, **options)
    wrong: Any = "64"
    with pytest.raises(TypeError, match="batch_size='64'; give a whole number"):
        forebay.DataLoader(dataset, batch_size=wrong, **options)
    larger = forebay.DataLoader(dataset, batch_size=1000, collate_fn=list, **options)
    (batch,) = larger
    assert Counter(batch) == Counter(CONTENTS)
    with pytest.warns(RuntimeWarning, match="leaves nothing: .* less than one batch of 1000"):
        none = forebay.DataLoader(dataset, batch_size=1000, drop_last=True, **options)
    assert list(none) == []
    assert len(none) == 0


@pytest.mark.parametrize("options", ORDERS, ids=NAMES)
@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_batch_size_items_are_yielded(world: World, options: Any, workers: int) -> None:
    dataset = world.dataset(cache=None)
    loader = forebay.DataLoader(dataset, batch_size=None, num_workers=workers, **options)
    epoch = iter(loader)
    yielded = list(islice(epoch, 50))
    state = loader.state_dict()
    rest = list(epoch)
    assert Counter([*yielded, *rest]) == Counter(CONTENTS)
    assert len(loader) == ITEMS
    again = forebay.DataLoader(dataset, batch_size=None, **options)
    again.load_state_dict(state)
    assert Counter([*yielded, *again]) == Counter(CONTENTS)


def tensor(item: bytes) -> torch.Tensor:
    return torch.tensor(len(item))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_persistent_workers_with_a_prefetch_factor(world: World, context: str) -> None:
    loader = forebay.DataLoader(
        world.dataset(transform=tensor),
        batch_size=32,
        shuffle=True,
        num_workers=2,
        prefetch_factor=4,
        persistent_workers=True,
        multiprocessing_context=context,
    )
    for _ in range(2):
        assert int(sum(batch.sum() for batch in loader)) == BYTES
    # An unfinished epoch can be continued by another loader.
    left = list(islice(loader, 2))
    state = loader.state_dict()
    again = forebay.DataLoader(world.dataset(transform=tensor), batch_size=32, shuffle=True)
    again.load_state_dict(state)
    assert int(sum(batch.sum() for batch in [*left, *again])) == BYTES


def test_pinning_without_an_accelerator_warns_as_pytorch_does(world: World) -> None:
    dataset = world.dataset(cache=None, transform=tensor)
    options: dict[str, Any] = {"batch_size": 32, "pin_memory": True, "num_workers": 1}
    with pytest.warns(UserWarning, match="pin_memory"):
        batches = list(forebay.DataLoader(dataset, shuffle=True, **options))
    assert int(sum(batch.sum() for batch in batches)) == BYTES


def test_two_iterators_of_one_loader_are_independent(world: World) -> None:
    loader = forebay.DataLoader(world.dataset(cache=None), 16, shuffle=True, collate_fn=list)
    next(iter(loader))  # an iterator that is not continued
    seen = [Counter[bytes](), Counter[bytes]()]
    for batches in zip(loader, loader, strict=True):
        for items, batch in zip(seen, batches, strict=True):
            items.update(batch)
    assert seen == [Counter(CONTENTS)] * 2


def test_distributed_samplers_are_honoured(world: World) -> None:
    dataset: Any = world.dataset(cache=None)
    sampler: Any = data.DistributedSampler(dataset, num_replicas=2, rank=1, seed=3)
    loader = forebay.DataLoader(dataset, 16, sampler=sampler, collate_fn=list)
    plain: Any = data.DataLoader(dataset, 16, sampler=sampler, collate_fn=list)
    assert loader.sampler is sampler
    for epoch in range(2):
        loader.set_epoch(epoch)
        assert list(loader) == list(plain)


def test_invalid_ranks_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = world.dataset(cache=None)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        forebay.DataLoader(dataset, shuffle=True, rank=2, world_size=2)
    with pytest.raises(ValueError, match="both"):
        forebay.DataLoader(dataset, shuffle=True, rank=1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "one")
    with pytest.raises(ValueError, match="WORLD_SIZE=one"):
        forebay.DataLoader(dataset, shuffle=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(forebay.DataLoader(dataset, shuffle=True)) == 102


SCRIPT = """
import sys, hashlib
import torch, torch.distributed as distributed
import forebay

distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(rank)
dataset = forebay.Dataset({digest!r}, storage_options={options!r}, job="torchrun")
loader = forebay.DataLoader(dataset, batch_size=16, shuffle=True, num_workers=1, collate_fn=list)
for epoch in range(2):
    items = []
    for batch in loader:
        distributed.barrier()
        items += [hashlib.sha256(item).hexdigest() for item in batch]
    both = [None, None]
    distributed.all_gather_object(both, items)
    if rank == 0:
        print("epoch", len(both[0]), len(both[1]), len(set(both[0] + both[1])))
distributed.destroy_process_group()
"""


def test_torchrun_with_two_processes(world: World, tmp_path: Path) -> None:
    """Promise 2. All ranks get the same number of batches, or the barrier would hang."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(digest=str(world.digest), options=world.options))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.count(f"epoch 102 102 {len(set(CONTENTS))}") == 2, ran.stdout


EXAMPLES = ["DataLoader", "Mixture", "Sampler", "wrap"]
EXAMPLES += [f"Dataset.{name}" for name in ("subset", "split", "filter", "repeat")]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_the_docstrings(world: World, name: str) -> None:
    datasets = {variable: world.dataset(cache=None) for variable in ("dataset", "another")}
    names = {"forebay": forebay, "torch": torch, **datasets}
    found = doctest.DocTestFinder(recurse=False).find(attrgetter(name)(forebay), name, globs=names)
    runner = doctest.DocTestRunner()
    for test in found:
        runner.run(test)
    assert runner.summarize().failed == 0
    assert runner.tries > 0


def test_a_loader_names_what_to_do_with_other_datasets(world: World) -> None:
    dataset: Any = world.dataset(cache=None)
    others: list[tuple[Any, str]] = [
        (torch.utils.data.Subset(dataset, [1, 2]), r"give dataset\.subset"),
        (forebay.IterableDataset(dataset), "torch.utils.data.DataLoader"),
        ([1, 2, 3], "forebay.wrap"),
    ]
    for other, remedy in others:
        with pytest.raises(TypeError, match=remedy):
            forebay.DataLoader(other)


def test_warnings_point_at_the_users_line(world: World, tmp_path: Path) -> None:
    dataset = world.dataset(cache=tmp_path / "missing.sock")
    with pytest.warns(RuntimeWarning, match="it does not answer") as warned:
        dataset[3]
    assert warned[0].filename == __file__


def test_a_state_beyond_the_end_of_a_sampler_is_refused(world: World) -> None:
    dataset = world.dataset(cache=None)
    long, short = (forebay.DataLoader(dataset, 16, sampler=range(end)) for end in (200, 32))
    list(islice(long, 5))
    with pytest.raises(forebay.StateError, match="5 batches, which the sampler does not have"):
        short.load_state_dict(long.state_dict())
