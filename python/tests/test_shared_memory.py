"""Bytes are shared, not copied: from the node to this process, and from workers to it."""

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
from handing import OF_NODE, OF_WORKERS, Workers, is_same, lies_in
from harness import CONTENTS, ITEMS, World
from torch.utils import data

import forebay
from forebay import _handover

FORK: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}


def address(content: memoryview) -> int:
    return int(np.frombuffer(content, np.uint8).ctypes.data)


def warm(dataset: forebay.Dataset) -> None:
    """Read all of it, so that the node has it."""
    assert [bytes(item) for item in dataset] == CONTENTS


# --- in process ---


def test_items_are_views_of_what_the_node_has_placed(world: World) -> None:
    dataset = world.dataset(views=True)
    warm(dataset)
    for number, batch in enumerate(forebay.DataLoader(dataset, batch_size=16, collate_fn=list)):
        assert [bytes(item) for item in batch] == CONTENTS[16 * number : 16 * number + 16]
        assert all(item.readonly for item in batch)
        assert {lies_in(address(item)) for item in batch if len(item)} == {OF_NODE}


def test_views_stay_what_they_are_for_as_long_as_they_are_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all places are taken, items are copied."""
    monkeypatch.setenv("FOREBAY_SEGMENT", "1MiB")
    dataset = world.dataset(views=True)
    warm(dataset)
    loader = forebay.DataLoader(dataset, batch_size=16, collate_fn=list)
    kept = [*loader, *loader]
    items = [item for batch in kept for item in batch]
    assert [bytes(item) for item in items] == CONTENTS * 2
    places = Counter(lies_in(address(item)) == OF_NODE for item in items if len(item))
    assert places[True]
    assert places[False]
    array = np.frombuffer(items[0], np.uint8)
    del items, kept
    for _ in range(3):
        warm(dataset)
    assert array.tobytes() == CONTENTS[0], "what was made of a view keeps its place, too"


def test_a_transform_is_given_views(world: World) -> None:
    dataset = world.dataset(views=True, transform=lambda content: (type(content), len(content)))
    assert dataset[5] == (memoryview, len(CONTENTS[5]))
    assert world.dataset(views=True, columns=["label"])[12][1] == 2


@pytest.mark.parametrize("order", [None, "strict", "substitute"])
def test_the_node_is_asked_once_for_what_is_asked_for_ahead(world: World, order: Any) -> None:
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
    assert after["hits"] - before["hits"] == 2 * 192, "nor for the short batch that is dropped"
    assert after["misses"] == before["misses"]


def test_a_node_that_dies_with_what_was_asked_of_it_costs_nothing(
    world: World, tmp_path: Path
) -> None:
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


def test_a_forked_child_asks_for_itself(world: World) -> None:
    dataset = world.dataset()
    warm(dataset)
    dataset.ask([3, 4])
    child = os.fork()
    if child == 0:
        os._exit(0 if dataset.__getitems__([3, 4]) == CONTENTS[3:5] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert dataset.__getitems__([3, 4]) == CONTENTS[3:5]


# --- from workers ---


class Made(data.Dataset[Any]):
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
def test_whatever_a_batch_holds_arrives_as_it_was(context: str) -> None:
    made = Made()
    loader = Workers(
        made, batch_size=3, collate_fn=list, num_workers=2, multiprocessing_context=context
    )
    items = [item for batch in loader for item in batch]
    assert len(items) == len(made)
    for index, item in enumerate(items):
        assert is_same(item, made[index]), index
    shared = items[len(Made.KINDS) - 1]
    assert shared[0] is shared[1]


def test_large_things_do_not_go_through_the_pipe(world: World) -> None:
    def as_tensors(content: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(content[:5000].ljust(5000)), dtype=torch.uint8)

    for batch in forebay.DataLoader(world.dataset(transform=as_tensors), batch_size=16, **FORK):
        assert lies_in(batch.data_ptr()) == OF_WORKERS
        batch += 1  # it is the user's own
    views = world.dataset(views=True)
    for batch in forebay.DataLoader(views, batch_size=16, collate_fn=list, **FORK):
        large = [item for item in batch if len(item) >= _handover.PLACED_MIN]
        assert {lies_in(address(item)) for item in large} == {OF_WORKERS}


PICTURES = torch.arange(64 * 3 * 50 * 40).view(64, 3, 50, 40)
#: Tensors that share their memory, none of them contiguous, and how many bytes their batch takes.
APART: dict[str, tuple[Any, int]] = {
    "turned": (lambda: [picture.permute(1, 2, 0) for picture in PICTURES], PICTURES.nbytes),
    "crops": (lambda: [picture[:, :20, :20] for picture in PICTURES], PICTURES.nbytes // 5),
    "repeated": (lambda: [*torch.arange(6000).expand(9, 50, 6000)], 6000 * 8),
    "imaginary": (lambda: [*torch.ones(64, 3000, dtype=torch.complex64).conj()], 64 * 3000 * 8),
    "few": (lambda: [*torch.arange(12).view(2, 3, 2).transpose(1, 2)], 0),
}


@pytest.mark.parametrize("made", APART)
@pytest.mark.filterwarnings("error")
def test_tensors_that_share_memory_do_not_each_send_all_of_it(
    made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, size = APART[made]
    monkeypatch.setattr(_handover, "STRIP_BYTES", size + (256 << 10))
    items: Any = [0]
    for batch in Workers(items, 1, collate_fn=lambda _: make(), **FORK):
        assert is_same(batch, make())
        if made != "crops":  # of which what lies between is left out
            assert [one.stride() for one in batch] == [one.stride() for one in make()]
        assert {lies_in(one.data_ptr()) for one in batch} == {OF_WORKERS} or made == "few"


#: Tensors of which elements and shape do not tell all, and what lies behind tensors.
ODD: dict[str, Any] = {
    "sparse": lambda: torch.eye(2000).to_sparse(),
    "sparse, with a place twice": lambda: torch.sparse_coo_tensor(
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


def told(odd: Any) -> Any:
    """What is to be compared of it."""
    if not isinstance(odd, torch.Tensor):
        return type(odd), odd.tolist()
    if odd.is_nested:
        return [part.tolist() for part in odd.unbind()]
    return odd.layout, odd.to_dense().tolist(), odd.is_sparse and odd.is_coalesced()


@pytest.mark.parametrize("made", ODD)
@pytest.mark.filterwarnings("ignore:.*(prototype|beta|TypedStorage|invariant checks):UserWarning")
def test_whatever_pytorch_sends_arrives(made: str) -> None:
    make = ODD[made]
    items: Any = [0, 1]
    batches = [*Workers(items, 1, collate_fn=lambda _: make(), **FORK)]
    assert [told(batch) for batch in batches] == [told(make())] * 2


def faults(samples: Any) -> int:
    """Pages that were new to this process, after it has made a batch and let go of it."""
    contents = [b"%d" % number * 50_000 for number in range(10, 74)]
    assert len(contents[-1]) == 100_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others keep other amounts")
def test_workers_keep_the_memory_of_a_batch_for_the_next() -> None:
    loader = Workers(
        Made(), batch_size=1, collate_fn=faults, num_workers=1, multiprocessing_context="spawn"
    )
    counts = [*loader]
    of_one = 64 * 100_000 // 4096
    assert counts[-1] - counts[2] < of_one, "not even those of one batch in forty"


#: As `faults`, in a process that has a loader.
KEEPS = """
import resource, sys, forebay
loader = forebay.DataLoader(forebay.Dataset(sys.argv[1], cache=None), 4, collate_fn=list)
counts = []
for _ in range(12):
    contents = [b"%d" % number * 50_000 for number in range(10, 74)]
    del contents
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(counts[-1] - counts[2])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others keep other amounts")
def test_so_does_a_process_that_has_a_loader(world: World) -> None:
    command = [sys.executable, "-c", KEEPS, str(world.digest)]
    told = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    assert int(told) < 64 * 100_000 // 4096


def test_batches_stay_what_they_are_for_as_long_as_they_are_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for more, batches are pickled."""
    monkeypatch.setattr(_handover, "STRIP_BYTES", 256 << 10)
    loader = forebay.DataLoader(world.dataset(views=True), batch_size=16, collate_fn=list, **FORK)
    kept = [item for batch in loader for item in batch]
    assert [bytes(item) for item in kept] == CONTENTS
    large = [item for item in kept if len(item) >= _handover.PLACED_MIN]
    places = Counter(lies_in(address(item)) == OF_WORKERS for item in large)
    assert places[True]
    assert places[False]


def test_places_are_used_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 6: bounded by what is on its way, however many batches there are."""
    monkeypatch.setattr(_handover, "STRIP_BYTES", 512 << 10)
    options = {**FORK, "persistent_workers": True}
    loader = forebay.DataLoader(world.dataset(views=True), batch_size=8, collate_fn=list, **options)
    for _ in range(3):
        for batch in loader:
            large = [item for item in batch if len(item) >= _handover.PLACED_MIN]
            assert {lies_in(address(item)) for item in large} == {OF_WORKERS}


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
    """What is asked ahead by one is not given up for the other: that would close its connection."""
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
    assert connections() - before < 20, "and not two for each of 153 batches"


@pytest.mark.parametrize("order", ["strict", "substitute"])
def test_what_was_asked_for_in_vain_is_given_back(world: World, own_node: Path, order: Any) -> None:
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
    assert last <= first + 1, "and not two more for each epoch that was broken off"


def test_views_need_somebody_to_collate_them(world: World) -> None:
    views = world.dataset(cache=None, views=True)
    with pytest.raises(ValueError, match="PyTorch cannot collate views"):
        forebay.DataLoader(views, 4)
    made = world.dataset(cache=None, views=True, transform=len)
    assert sum(len(batch) for batch in forebay.DataLoader(made, 4)) == ITEMS
