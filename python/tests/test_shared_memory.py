"""Shared memory: items from the node and batches from workers are not copied."""

from __future__ import annotations

import gc
import itertools
import os
import platform
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest
import torch
from harness import CONTENTS, ITEMS, World
from shm_assertions import OF_NODE, OF_WORKERS, Workers, is_same, mapping_of
from torch.utils import data

import forebay
from forebay._workers import shm_arena

FORK: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}


def address(content: memoryview) -> int:
    return int(np.frombuffer(content, np.uint8).ctypes.data)


def warm(dataset: forebay.Dataset) -> None:
    """Read all items, so that the node has them."""
    assert [bytes(item) for item in dataset] == CONTENTS


# --- in process ---


def test_items_are_views_of_the_nodes_shared_memory(world: World) -> None:
    dataset = world.dataset(views=True)
    warm(dataset)
    for number, batch in enumerate(forebay.DataLoader(dataset, batch_size=16, collate_fn=list)):
        assert [bytes(item) for item in batch] == CONTENTS[16 * number : 16 * number + 16]
        assert all(item.readonly for item in batch)
        assert {mapping_of(address(item)) for item in batch if len(item)} == {OF_NODE}


def test_kept_views_are_not_overwritten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all slots are in use, items are copied."""
    monkeypatch.setenv("FOREBAY_SHM", "1MiB")
    dataset = world.dataset(views=True)
    warm(dataset)
    loader = forebay.DataLoader(dataset, batch_size=16, collate_fn=list)
    kept = [*loader, *loader]
    items = [item for batch in kept for item in batch]
    assert [bytes(item) for item in items] == CONTENTS * 2
    is_shared = Counter(mapping_of(address(item)) == OF_NODE for item in items if len(item))
    assert is_shared[True]
    assert is_shared[False]
    array = np.frombuffer(items[0], np.uint8)
    del items, kept
    for _ in range(3):
        warm(dataset)
    assert array.tobytes() == CONTENTS[0], "an array of a view keeps the slot in use"


def test_a_transform_gets_views(world: World) -> None:
    dataset = world.dataset(views=True, transform=lambda content: (type(content), len(content)))
    assert dataset[5] == (memoryview, len(CONTENTS[5]))
    assert world.dataset(views=True, columns=["label"])[12][1] == 2


@pytest.mark.parametrize("order", [None, "strict", "substitute"])
def test_batches_requested_ahead_are_requested_once(world: World, order: Any) -> None:
    dataset = world.dataset()
    warm(dataset)
    options: dict[str, Any] = {"batch_size": 16, "drop_last": True, "collate_fn": list}
    loader = forebay.DataLoader(dataset, shuffle=order is not None, order=order, **options)
    before = dataset.stats()["node"]
    for _ in range(2):
        assert sum(len(batch) for batch in loader) == 192
    after = dataset.stats()["node"]
    assert before is not None
    assert after is not None
    assert after["hits"] - before["hits"] == 2 * 192, "and none for the short batch that is dropped"
    assert after["misses"] == before["misses"]


def test_a_node_that_dies_with_open_requests_costs_no_items(world: World, tmp_path: Path) -> None:
    """Promise 5: fail open."""
    with harness.node(tmp_path / "node") as process:
        dataset = world.dataset(cache=tmp_path / "node" / "node.sock")
        warm(dataset)
        loader = forebay.DataLoader(dataset, batch_size=16, shuffle=True, collate_fn=list)
        items: list[bytes] = []
        for number, batch in enumerate(loader):
            items += batch
            if number == 4:
                process.kill()
    assert Counter(items) == Counter(CONTENTS)


def test_a_forked_child_makes_its_own_requests(world: World) -> None:
    dataset = world.dataset()
    warm(dataset)
    dataset._request([3, 4])
    child = os.fork()
    if child == 0:
        os._exit(0 if dataset.__getitems__([3, 4]) == CONTENTS[3:5] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert dataset.__getitems__([3, 4]) == CONTENTS[3:5]


# --- from workers ---


class Items(data.Dataset[Any]):
    """Items of all kinds, large and small."""

    KINDS = (
        lambda n: bytes([n % 251]) * 9000,
        lambda n: b"small %d" % n,
        lambda n: np.full((40, 50), n, np.float32),
        lambda n: np.full((3, 900, 2), n, np.float32).transpose(2, 0, 1),
        lambda n: np.array(["word", n], object),
        lambda n: torch.full((7, 1000), n, dtype=torch.bfloat16),
        lambda n: torch.full((2000,), n, dtype=torch.complex64).conj(),
        lambda n: torch.arange(6000).reshape(60, 100).t() + n,
        lambda n: torch.zeros(5000, dtype=torch.bool),
        lambda n: torch.ones(2000, requires_grad=True),
        lambda n: {"text": "t" * 9000, "deep": [(n, bytes([n % 7]) * 5000)]},
        lambda n: memoryview(bytes([n % 5]) * 5000),
        lambda n: memoryview(b"little"),
        lambda n: [shared := torch.full((3000,), n), shared],
    )

    def __len__(self) -> int:
        return 3 * len(self.KINDS)

    def __getitem__(self, index: int) -> Any:
        return self.KINDS[index % len(self.KINDS)](index)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_values_of_all_kinds_arrive_unchanged(context: str) -> None:
    dataset = Items()
    loader = Workers(
        dataset, batch_size=3, collate_fn=list, num_workers=2, multiprocessing_context=context
    )
    items = [item for batch in loader for item in batch]
    assert len(items) == len(dataset)
    for index, item in enumerate(items):
        assert is_same(item, dataset[index]), index
    shared = items[len(Items.KINDS) - 1]
    assert shared[0] is shared[1]


def test_large_values_come_through_shared_memory(world: World) -> None:
    def as_tensors(content: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(content[:5000].ljust(5000)), dtype=torch.uint8)

    for batch in forebay.DataLoader(world.dataset(transform=as_tensors), batch_size=16, **FORK):
        assert mapping_of(batch.data_ptr()) == OF_WORKERS
        batch += 1  # the user may write to it
    views = world.dataset(views=True)
    for batch in forebay.DataLoader(views, batch_size=16, collate_fn=list, **FORK):
        large = [item for item in batch if len(item) >= shm_arena.SHM_BYTES_MIN]
        assert {mapping_of(address(item)) for item in large} == {OF_WORKERS}


PICTURES = torch.arange(64 * 3 * 50 * 40).view(64, 3, 50, 40)
#: Non-contiguous tensors that share memory, and the size of their batch in bytes.
NON_CONTIGUOUS: dict[str, tuple[Any, int]] = {
    "turned": (lambda: [picture.permute(1, 2, 0) for picture in PICTURES], PICTURES.nbytes),
    "crops": (lambda: [picture[:, :20, :20] for picture in PICTURES], PICTURES.nbytes // 5),
    "repeated": (lambda: [*torch.arange(6000).expand(9, 50, 6000)], 6000 * 8),
    "imaginary": (lambda: [*torch.ones(64, 3000, dtype=torch.complex64).conj()], 64 * 3000 * 8),
    "few": (lambda: [*torch.arange(12).view(2, 3, 2).transpose(1, 2)], 0),
}


@pytest.mark.parametrize("name", NON_CONTIGUOUS)
@pytest.mark.filterwarnings("error")
def test_tensors_that_share_memory_send_it_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, size = NON_CONTIGUOUS[name]
    monkeypatch.setattr(shm_arena, "STRIP_BYTES", size + (256 << 10))
    items: Any = [0]
    for batch in Workers(items, 1, collate_fn=lambda _: make(), **FORK):
        assert is_same(batch, make())
        if name != "crops":  # which are sent without gaps
            assert [one.stride() for one in batch] == [one.stride() for one in make()]
        assert {mapping_of(one.data_ptr()) for one in batch} == {OF_WORKERS} or name == "few"


#: Tensors that are not described by elements and shape alone, and storages.
SPECIAL: dict[str, Any] = {
    "sparse": lambda: torch.eye(2000).to_sparse(),
    "sparse, with a repeated index": lambda: torch.sparse_coo_tensor(
        torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (5, 5)
    ),
    "compressed": lambda: torch.eye(2000).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(3, 900), torch.ones(5, 900)]),
    "nested and small": lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(5)]),
    "storage": lambda: torch.ones(3000).untyped_storage(),
    "small storage": lambda: torch.ones(3).untyped_storage(),
    "empty storage": lambda: torch.ones(0).untyped_storage(),
    "typed storage": lambda: torch.ones(3000)._typed_storage(),  # type: ignore[no-untyped-call]
}


def comparable(value: Any) -> Any:
    """A form of such a value that can be compared."""
    if not isinstance(value, torch.Tensor):
        return type(value), value.tolist()
    if value.is_nested:
        return [part.tolist() for part in value.unbind()]
    return value.layout, value.to_dense().tolist(), value.is_sparse and value.is_coalesced()


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.filterwarnings("ignore:.*(prototype|beta|TypedStorage|invariant checks):UserWarning")
def test_special_tensors_and_storages_arrive(name: str) -> None:
    make = SPECIAL[name]
    items: Any = [0, 1]
    batches = [*Workers(items, 1, collate_fn=lambda _: make(), **FORK)]
    assert [comparable(batch) for batch in batches] == [comparable(make())] * 2


def page_faults(samples: Any) -> int:
    """Page faults of this process, after it has made and freed a batch."""
    contents = [b"%d" % number * 50_000 for number in range(10, 74)]
    assert len(contents[-1]) == 100_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries keep other amounts"
)
def test_workers_keep_the_memory_of_a_batch_for_the_next() -> None:
    loader = Workers(
        Items(),
        batch_size=1,
        collate_fn=page_faults,
        num_workers=1,
        multiprocessing_context="spawn",
    )
    counts = [*loader]
    of_one = 64 * 100_000 // 4096
    assert counts[-1] - counts[2] < of_one, "fewer than one batch's pages in forty batches"


#: As `page_faults`, in a process that has a loader.
LOADER_SCRIPT = """
import resource, sys, forebay
loader = forebay.DataLoader(forebay.Dataset(sys.argv[1], cache=None), 4, collate_fn=list)
counts = []
for _ in range(12):
    contents = [b"%d" % number * 50_000 for number in range(10, 74)]
    del contents
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(counts[-1] - counts[2])
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries keep other amounts"
)
def test_a_process_with_a_loader_keeps_memory_for_the_next_batch(world: World) -> None:
    command = [sys.executable, "-c", LOADER_SCRIPT, str(world.digest)]
    output = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    assert int(output) < 64 * 100_000 // 4096


def test_kept_batches_are_not_overwritten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the strip is full, batches are pickled."""
    monkeypatch.setattr(shm_arena, "STRIP_BYTES", 256 << 10)
    loader = forebay.DataLoader(world.dataset(views=True), batch_size=16, collate_fn=list, **FORK)
    kept = [item for batch in loader for item in batch]
    assert [bytes(item) for item in kept] == CONTENTS
    large = [item for item in kept if len(item) >= shm_arena.SHM_BYTES_MIN]
    is_shared = Counter(mapping_of(address(item)) == OF_WORKERS for item in large)
    assert is_shared[True]
    assert is_shared[False]


def test_slots_are_reused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 6: memory is bounded by batches on their way, not by the number of batches."""
    monkeypatch.setattr(shm_arena, "STRIP_BYTES", 512 << 10)
    options = {**FORK, "persistent_workers": True}
    loader = forebay.DataLoader(world.dataset(views=True), batch_size=8, collate_fn=list, **options)
    for _ in range(3):
        for batch in loader:
            large = [item for item in batch if len(item) >= shm_arena.SHM_BYTES_MIN]
            assert {mapping_of(address(item)) for item in large} == {OF_WORKERS}


def test_without_memory_to_share_batches_are_pickled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(name: str) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuses)
    loader = forebay.DataLoader(world.dataset(views=True), batch_size=8, collate_fn=list, **FORK)
    with pytest.warns(RuntimeWarning, match="no memory to share with workers"):
        items = [item for batch in loader for item in batch]
    assert [bytes(item) for item in items] == CONTENTS


def test_loaders_that_take_turns_keep_their_connections(world: World, own_node: Path) -> None:
    """A request of one is not cancelled for the other: that would close its connection."""
    dataset = world.dataset()
    warm(dataset)
    loaders = [forebay.DataLoader(dataset, 4, shuffle=True, collate_fn=list) for _ in range(3)]

    def connections() -> int:
        node = dataset.stats()["node"]
        assert node is not None
        return node["connections"]

    before = connections()
    for batches in zip(*loaders, strict=True):
        assert [len(batch) for batch in batches] in ([4] * 3, [3] * 3)
    assert connections() - before < 20, "not two for each of 153 batches"


@pytest.mark.parametrize("order", ["strict", "substitute"])
def test_requests_of_unfinished_epochs_are_cancelled(
    world: World, own_node: Path, order: Any
) -> None:
    dataset = world.dataset()
    warm(dataset)
    loader = forebay.DataLoader(dataset, 16, shuffle=True, order=order, collate_fn=list)

    def open_connections() -> int:
        for _ in itertools.islice(loader, 2):
            pass
        gc.collect()
        node = dataset.stats()["node"]
        assert node is not None
        return node["connections_open"]

    first = open_connections()
    for _ in range(8):
        last = open_connections()
    assert last <= first + 1, "not two more for each unfinished epoch"


def test_views_need_a_collate_fn_or_a_transform(world: World) -> None:
    views = world.dataset(cache=None, views=True)
    with pytest.raises(ValueError, match="PyTorch cannot collate views"):
        forebay.DataLoader(views, 4)
    transformed = world.dataset(cache=None, views=True, transform=len)
    assert sum(len(batch) for batch in forebay.DataLoader(transformed, 4)) == ITEMS
