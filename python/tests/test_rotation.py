"""Rotation: a loader reports to the node, and draws from what the node keeps."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from harness import CONTENTS, ITEMS, World

import forebay
from forebay._runtime.processes import binary

#: Ten chunks of 3 MiB.
LARGE = [f"{item:04}".encode() * (16 << 10) for item in range(480)]
LARGE_BYTES = sum(map(len, LARGE))


@pytest.fixture(scope="module")
def large_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A dataset that is larger than the nodes of these tests."""
    with harness.origin(tmp_path_factory.mktemp("large"), contents=LARGE) as world:
        yield world


@pytest.fixture
def small_node(tmp_path: Path) -> Iterator[Path]:
    """A node with space for about half of the dataset."""
    options = ("--capacity", "20MiB", "--memory-cache", "1MiB")
    with harness.node(tmp_path / "node", *options):
        yield tmp_path / "node" / "node.sock"


def loader_of(dataset: forebay.Dataset, seed: int = 3, **options: Any) -> forebay.DataLoader:
    options = {"batch_size": 16, "shuffle": True, "collate_fn": list, **options}
    return forebay.DataLoader(dataset, generator=torch.Generator().manual_seed(seed), **options)


def test_a_single_job_keeps_what_fits(large_world: World, small_node: Path) -> None:
    """Promise 3: pinned items are fetched once, which is the lower bound."""
    dataset = large_world.dataset(cache=small_node)
    loader = loader_of(dataset, num_workers=2)
    spent = []
    for _ in range(3):
        large_world.reset_counters()
        items = [item for batch in loader for item in batch]
        assert Counter(items) == Counter(LARGE), "every item once (promise 2)"
        spent.append(large_world.counters()["bytes_sent"])
    stats = loader.stats()
    assert stats["reports"] > 0
    assert 0.2 < stats["pinned_share"] <= stats["drawable_share"] < 0.9
    # Blobs that were put before the first report may be evicted again.
    assert spent[0] <= 1.1 * LARGE_BYTES
    # Blobs fetched ahead at the end of an epoch may be of the next.
    assert spent[2] < (1.15 - stats["pinned_share"]) * LARGE_BYTES
    assert stats["batches"] == 90
    assert stats["items"] == 3 * 480
    assert 0.0 < stats["hit_share"] < 1.0
    assert stats["origin_bytes"] == sum(spent)
    assert stats["stall_seconds"] > 0


def test_two_jobs_share_rotating_chunks(large_world: World, small_node: Path) -> None:
    """Promise 3: without sharing, each would fetch everything in every epoch."""
    loaders = [
        loader_of(large_world.dataset(cache=small_node, job=f"job {seed}"), seed)
        for seed in range(2)
    ]
    large_world.reset_counters()
    for _ in range(2):
        seen = [Counter[bytes](), Counter[bytes]()]
        for batches in zip(*loaders, strict=True):
            for items, batch in zip(seen, batches, strict=True):
                items.update(batch)
        assert seen == [Counter(LARGE)] * 2, "every item once (promise 2)"
    assert len(large_world.explained(small_node)["jobs"]) == 2
    fetched, unshared = large_world.counters()["bytes_sent"], 4 * LARGE_BYTES
    assert fetched < 0.7 * unshared
    for loader in loaders:
        # Promise 8. The lead of pinned items says little after thirty batches.
        quality = loader.stats()["shuffle_quality"]
        assert 0.8 < quality["displacement"] < 1.2
        assert quality["neighbours"] < 1.5
    # A job that ends tells the node.
    del loaders, loader
    gc.collect()
    described = large_world.explained(small_node)
    assert described is None or described["jobs"] == []


def test_a_restarted_job_fences_its_predecessor(world: World, own_node: Path) -> None:
    replaced = loader_of(world.dataset(job="training"), num_workers=1)
    old = iter(replaced)
    first = list(itertools.islice(old, 2))
    new = loader_of(world.dataset(job="training"), seed=4)
    epoch = iter(new)
    batches = [next(epoch)]
    # At the latest when the next epoch begins, also on a busy machine.
    with pytest.raises(forebay.Fenced, match="started again"):
        list(itertools.chain(old, replaced))
    batches += epoch
    assert Counter(item for batch in batches for item in batch) == Counter(CONTENTS)
    assert len(first) == 2


def test_jobs_without_a_name_do_not_fence_each_other(world: World) -> None:
    loaders = [loader_of(world.dataset(), seed) for seed in range(2)]
    # Several loaders of one dataset do not, either.
    loaders.append(loader_of(loaders[0]._order.dataset, 5))
    for batches in zip(*loaders, strict=True):
        assert len(batches) == 3


@pytest.mark.parametrize("job", [None, "training"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_of_a_dataset_do_not_fence_each_other(
    world: World, own_node: Path, copied: Callable[[forebay.Dataset], forebay.Dataset], job: Any
) -> None:
    dataset = world.dataset(job=job)
    copies = [dataset, copied(dataset), copied(dataset)]
    loaders = [loader_of(one, seed) for seed, one in enumerate(copies)]
    for _ in range(2):
        for loader in loaders:
            assert Counter(item for batch in loader for item in batch) == Counter(CONTENTS)
    assert len(world.explained(own_node)["jobs"]) == 3
    del loader, loaders, copies
    gc.collect()
    assert len(world.explained(own_node)["jobs"]) == 1, "copies tell the node, too"


def test_a_probe_reads_past_the_cache(world: World, own_node: Path) -> None:
    """Promise 3: probes are counted. They must miss to measure the benefit."""
    dataset = world.dataset()
    loader = loader_of(dataset, batch_size=1)
    for _ in range(12):
        items = [item for batch in loader for item in batch]
        assert Counter(items) == Counter(CONTENTS)
        if loader.stats()["probes"] >= 20:
            break
    stats = loader.stats()
    assert stats["probes"] == 20, "one mini-batch in a hundred"
    agent = dataset.stats()["agent"]
    assert agent is not None
    assert agent["agent_probes"] == 20
    assert stats["origin_bytes"] > harness.BYTES
    (job,) = world.explained(own_node)["jobs"]
    assert job["miss_s"] is not None


def test_without_a_node_there_are_no_reports(world: World) -> None:
    loader = loader_of(world.dataset(cache=None))
    assert Counter(item for batch in loader for item in batch) == Counter(CONTENTS)
    stats = loader.stats()
    assert (stats["reports"], stats["probes"], stats["hit_share"]) == (0, 0, None)
    assert stats["origin_bytes"] == harness.BYTES
    assert stats["items"] == ITEMS
    assert stats["pinned_share"] == 0.0


def test_a_restarted_node_gets_full_reports(large_world: World, tmp_path: Path) -> None:
    """Promise 5: a lost manager costs hits only."""
    socket = tmp_path / "node" / "node.sock"
    options = ("--capacity", "20MiB", "--memory-cache", "1MiB")
    dataset = large_world.dataset(cache=socket)
    loader, seen = loader_of(dataset, num_workers=2), Counter[bytes]()
    with harness.node(tmp_path / "node", *options) as process:
        epoch = iter(loader)
        for batch in itertools.islice(epoch, 8):
            seen.update(batch)
        os.kill(process.pid, 9)
        process.wait()
        for batch in itertools.islice(epoch, 8):
            seen.update(batch)
    with harness.node(tmp_path / "node", *options):
        for batch in epoch:
            seen.update(batch)
        assert seen == Counter(LARGE)
        assert Counter(item for batch in loader for item in batch) == Counter(LARGE)
        assert loader.stats()["pinned_share"] > 0


def epoch_with_misses(world: World, dataset: forebay.Dataset, node: Path) -> forebay.DataLoader:
    """A loader after one epoch in which some items were not on the node.

    The agent may fetch ahead of a loader that is slow, so that all are hits. Then the node's copy
    is evicted and another loader tries.
    """
    evict = [binary(), "evict", str(world.digest), "--node", str(node)]
    for _ in range(50):
        loader = loader_of(dataset)
        list(loader)
        if loader.stats()["hit_share"] < 1.0:
            return loader
        subprocess.run(evict, check=True, capture_output=True, timeout=30)
    raise AssertionError("the agent was ahead of 50 loaders")


def test_the_hit_share_covers_a_loaders_own_epochs(world: World, own_node: Path) -> None:
    dataset = world.dataset()
    first = epoch_with_misses(world, dataset, own_node)
    share = first.stats()["hit_share"]

    def is_complete() -> bool:
        """Whether everything is on the node; the last puts may follow the end of an epoch."""
        loader = loader_of(dataset)
        list(loader)
        return bool(loader.stats()["hit_share"] == 1.0)

    harness.wait_until(is_complete, 30.0)
    for options in ({}, {"num_workers": 1}, {"num_workers": 2}, {"order": "strict"}):
        later = loader_of(dataset, **options)
        list(later)
        assert later.stats()["hit_share"] == 1.0, options
    assert first.stats()["hit_share"] == share, "other loaders do not change it"


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_ranks_of_an_unnamed_job_do_not_fence_each_other(world: World, how: str) -> None:
    """As with `torch.multiprocessing`: the dataset is made before the ranks are."""
    dataset = world.dataset()
    context: Any = torch.multiprocessing.get_context(how)
    results = context.Queue()
    ranks = [context.Process(target=read_as, args=(rank, dataset, results)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    found = [results.get(timeout=60) for _ in ranks]
    for rank in ranks:
        rank.join(timeout=60)
        assert rank.exitcode == 0
    assert all(not isinstance(one, str) for one in found), found
    counted = Counter(item for one in found for item in one)
    assert set(counted) == set(CONTENTS)
    assert sum(counted.values()) == ITEMS + 1, "one item is repeated to keep ranks equal"


def read_as(rank: int, dataset: forebay.Dataset, results: Any) -> None:
    loader = loader_of(dataset, rank=rank, world_size=2)
    try:
        items = [item for batch in loader for item in batch]
        results.put(items)
    except forebay.ForebayError as problem:
        results.put(repr(problem))
