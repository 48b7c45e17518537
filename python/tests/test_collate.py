"""Collation in shared memory: batches that workers collate are sent without a copy."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from shm_assertions import OF_WORKERS, Workers, is_same, mapping_of
from torch.utils import data
from torch.utils.data import default_collate

from forebay._workers import collate, shm_arena


class Rows(data.Dataset[Any]):
    """Tensors filled with their index; a batch of eight is large enough for shared memory."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000,), index, dtype=torch.int32)


class SharedAllocations:
    """Number of PyTorch's own shared allocations, in all processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.value = multiprocessing.get_context("fork").Value("q")
        original = torch.UntypedStorage._new_shared

        def counting(cls: Any, size: int, *, device: Any = "cpu") -> Any:
            with self.value.get_lock():
                self.value.value += 1
            return original.__func__(cls, size, device=device)  # type: ignore[attr-defined]

        monkeypatch.setattr(torch.UntypedStorage, "_new_shared", classmethod(counting))

    @property
    def count(self) -> int:
        return int(self.value.value)


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> SharedAllocations:
    return SharedAllocations(monkeypatch)


def collated(
    collate: Any, dataset: Any = None, context: str = "fork", workers: int = 1, **options: Any
) -> Workers:
    rows = Rows() if dataset is None else dataset
    return Workers(
        rows,
        batch_size=8,
        num_workers=workers,
        multiprocessing_context=context,
        collate_fn=collate,
        **options,
    )


def numbers(batch: int) -> torch.Tensor:
    """The content of a batch of rows."""
    return torch.arange(8 * batch, 8 * batch + 8, dtype=torch.int32)[:, None].expand(8, 1000)


def test_a_collated_batch_is_not_copied(allocations: SharedAllocations) -> None:
    def with_mapping(samples: Any) -> Any:
        batch = default_collate(samples)
        return batch, mapping_of(batch.data_ptr())

    for number, (batch, mapping) in enumerate(collated(with_mapping, workers=2)):
        assert torch.equal(batch, numbers(number))
        assert mapping == mapping_of(batch.data_ptr()) == OF_WORKERS
        batch += 1  # the user may write to it
    assert number == 11
    assert allocations.count == 0


def overwrites(samples: Any) -> Any:
    """Write to batches that were sent: the main process sees it if they were not copied."""
    batch = default_collate(samples)
    overwrites.sent.append(batch)  # type: ignore[attr-defined]
    for sent in overwrites.sent[:-1]:  # type: ignore[attr-defined]
        sent[0, 0] = -1
    return batch


overwrites.sent = []  # type: ignore[attr-defined]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_collated_batch_is_sent_in_place(context: str) -> None:
    batches = [*collated(overwrites, context=context)]
    for number, batch in enumerate(batches):
        assert torch.equal(batch[1:], numbers(number)[1:])
    assert [int(batch[0, 0]) for batch in batches] == [-1] * 11 + [88]


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_batch_that_a_worker_keeps_is_not_overwritten(
    is_sent: bool, allocations: SharedAllocations
) -> None:
    """Also when the main process no longer uses it, or never got it."""
    kept: list[torch.Tensor] = []

    def keeps(samples: Any) -> Any:
        kept.append(default_collate(samples))
        assert all(torch.equal(one, numbers(number)) for number, one in enumerate(kept))
        return kept[-1] if is_sent else len(kept)

    for number, batch in enumerate(collated(keeps)):
        assert torch.equal(batch, numbers(number)) if is_sent else batch == number + 1
        del batch
    assert number == 11
    assert allocations.count == 0


def test_a_batch_that_is_sent_again_is_copied(allocations: SharedAllocations) -> None:
    """The main process frees each copy separately."""
    kept: list[torch.Tensor] = []

    def repeats(samples: Any) -> Any:
        kept.append(default_collate(samples))
        return kept[-1], kept[0]

    firsts = [first for _, first in collated(repeats)]
    assert len({first.data_ptr() for first in firsts}) == 12
    assert all(torch.equal(first, numbers(0)) for first in firsts)
    for _, first in collated(repeats):
        assert torch.equal(first, numbers(0))
        del first


DERIVED: dict[str, Any] = {
    "another type": lambda batch: batch.float(),
    "the first rows": lambda batch: batch[:5],
    "the last rows": lambda batch: batch[5:],
    "columns": lambda batch: batch[:, ::2],
    "turned": lambda batch: batch.t(),
    "halves": lambda batch: [batch[:4], batch[4:]],
    "views": lambda batch: [batch, batch.view(-1), batch.view(torch.uint8), batch[:5], batch.t()],
    "twice": lambda batch: [batch, {"again": batch}],
    "shared": lambda batch: batch.clone().share_memory_() + batch.share_memory_(),
    "array": lambda batch: batch.numpy(),
    "parameter": lambda batch: torch.nn.Parameter(batch.float()),
}


@pytest.mark.parametrize("name", DERIVED)
def test_values_derived_from_a_collated_batch_arrive(
    name: str, allocations: SharedAllocations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots are reused: the strip is smaller than all batches together."""
    monkeypatch.setattr(shm_arena, "STRIP_BYTES", 1 << 20)
    derive = DERIVED[name]
    loader = collated(lambda samples: derive(default_collate(samples)), persistent_workers=True)
    for _ in range(3):
        for number, batch in enumerate(loader):
            assert is_same(batch, derive(numbers(number).contiguous())), number
            if name == "twice":
                assert batch[0] is batch[1]["again"]
            del batch
        assert number == 11
    assert allocations.count == 0


def test_an_error_after_collation_frees_its_slot(
    allocations: SharedAllocations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm_arena, "STRIP_BYTES", 160 << 10)

    def fails(samples: Any) -> Any:
        batch = default_collate(samples)
        if (int(batch[0, 0]) // 8) % 2:
            raise ValueError("odd")
        return batch

    batches = iter(collated(fails))
    for number in range(12):
        if number % 2:
            with pytest.raises(ValueError, match="odd"):
                next(batches)
        else:
            assert torch.equal(next(batches), numbers(number))
    assert allocations.count == 0


def test_workers_with_a_full_strip_collate_in_their_own_memory(
    allocations: SharedAllocations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in ``/dev/shm``, which may be small."""
    monkeypatch.setattr(shm_arena, "STRIP_BYTES", 128 << 10)
    kept = [*collated(default_collate)]
    assert all(torch.equal(batch, numbers(number)) for number, batch in enumerate(kept))
    is_shared = [mapping_of(batch.data_ptr()) == OF_WORKERS for batch in kept]
    assert is_shared == [True] * 3 + [False] * 9
    assert allocations.count == 0


def test_workers_without_shared_memory_collate_in_their_own(
    allocations: SharedAllocations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(name: str) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuses)
    with pytest.warns(RuntimeWarning, match="no memory to share with workers"):
        batches = [*collated(default_collate)]
    assert all(torch.equal(batch, numbers(number)) for number, batch in enumerate(batches))
    assert allocations.count == 0


class Nested(data.Dataset[Any]):
    """Structures of large and small tensors, arrays and numbers."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        deep = (torch.full((600, 2), index, dtype=torch.bfloat16), np.full(700, index, np.uint8))
        return {"number": index, "deep": [deep], "few": torch.ones(3), "text": f"{index}"}


def test_each_tensor_of_a_structure_is_collated_in_its_own_slot(
    allocations: SharedAllocations,
) -> None:
    nested = Nested()
    for number, batch in enumerate(collated(default_collate, nested, workers=2)):
        expected = default_collate([nested[8 * number + row] for row in range(8)])
        assert is_same(batch, expected)
        for tensor in batch["deep"][0]:
            assert mapping_of(tensor.data_ptr()) == OF_WORKERS
    assert number == 3
    assert allocations.count == 0, "not even for the small ones"


def test_the_allocation_is_replaced_only_during_collation(allocations: SharedAllocations) -> None:
    """Other threads are not affected."""
    before = torch.UntypedStorage._new_shared

    class CheckingRows(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            assert torch.UntypedStorage._new_shared == before
            return super().__getitem__(index)

    def in_a_thread(samples: Any) -> Any:
        assert torch.UntypedStorage._new_shared != before
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(default_collate, samples).result()

    for number, batch in enumerate(collated(in_a_thread, CheckingRows())):
        assert torch.equal(batch, numbers(number))
    assert allocations.count == 12


def test_the_replaced_allocation_is_restored() -> None:
    def fails(length: int) -> None:
        raise ValueError

    assert "_new_shared" not in vars(torch.UntypedStorage), "it is inherited"
    with pytest.raises(ValueError), collate.collating_into(fails):  # noqa: PT011
        torch.UntypedStorage._new_shared(1)  # type: ignore[no-untyped-call]
    assert "_new_shared" not in vars(torch.UntypedStorage)


def test_only_a_whole_slot_is_sent_in_place() -> None:
    slots = shm_arena.SlotAllocator(np.zeros(1 << 20, np.uint8))
    memory = slots.reserve(50_000)
    assert memory is not None
    begin = memory.ctypes.data
    flag = slots.find_collated(begin, 50_000)
    assert flag is not None
    assert slots.find_collated(begin, 40_000) is None
    assert slots.find_collated(begin + 10_000, 40_000) is None
    slots.send_collated(flag)
    assert slots.find_collated(begin, 50_000) is None, "a slot is sent once"


def test_with_an_unsupported_pytorch_batches_are_copied(
    allocations: SharedAllocations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collate, "SUPPORTED", False)
    for number, batch in enumerate(collated(default_collate)):
        assert torch.equal(batch, numbers(number))
        assert mapping_of(batch.data_ptr()) == OF_WORKERS
    assert allocations.count == 12


def test_support_is_detected_by_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    assert collate.SUPPORTED
    for other in (lambda cls, size, device: None, lambda cls, size, *, device, pinned: None):
        monkeypatch.setattr(torch.UntypedStorage, "_new_shared", classmethod(other))
        assert not collate._is_supported()
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", None)
    assert not collate._is_supported()
