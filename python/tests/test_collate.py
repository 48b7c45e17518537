"""What workers stack is handed over where it lies, and stays right whatever becomes of it."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from handing import OF_WORKERS, Workers, is_same, lies_in
from torch.utils import data
from torch.utils.data import default_collate

from forebay import _handover, _stacking


class Rows(data.Dataset[Any]):
    """Tensors that tell their numbers; eight of them are large enough to be placed."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000,), index, dtype=torch.int32)


class Calls:
    """How often PyTorch made shared memory of its own, in whatever process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.value = multiprocessing.get_context("fork").Value("q")
        original = torch.UntypedStorage._new_shared

        def counts(cls: Any, size: int, *, device: Any = "cpu") -> Any:
            with self.value.get_lock():
                self.value.value += 1
            return original.__func__(cls, size, device=device)  # type: ignore[attr-defined]

        monkeypatch.setattr(torch.UntypedStorage, "_new_shared", classmethod(counts))

    @property
    def count(self) -> int:
        return int(self.value.value)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def stacked(
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
    """What a batch of rows holds."""
    return torch.arange(8 * batch, 8 * batch + 8, dtype=torch.int32)[:, None].expand(8, 1000)


def test_what_a_worker_stacks_is_not_copied(calls: Calls) -> None:
    def tells_where(samples: Any) -> Any:
        batch = default_collate(samples)
        return batch, lies_in(batch.data_ptr())

    for number, (batch, where) in enumerate(stacked(tells_where, workers=2)):
        assert torch.equal(batch, numbers(number))
        assert where == lies_in(batch.data_ptr()) == OF_WORKERS
        batch += 1  # it is the user's own
    assert number == 11
    assert calls.count == 0


def stamps(samples: Any) -> Any:
    """What is written to it after it was sent arrives, if it was not copied."""
    batch = default_collate(samples)
    stamps.sent.append(batch)  # type: ignore[attr-defined]
    for sent in stamps.sent[:-1]:  # type: ignore[attr-defined]
        sent[0, 0] = -1
    return batch


stamps.sent = []  # type: ignore[attr-defined]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_what_a_worker_stacks_is_sent_where_it_lies(context: str) -> None:
    batches = [*stacked(stamps, context=context)]
    for number, batch in enumerate(batches):
        assert torch.equal(batch[1:], numbers(number)[1:])
    assert [int(batch[0, 0]) for batch in batches] == [-1] * 11 + [88]


@pytest.mark.parametrize("is_sent", [True, False])
def test_what_a_worker_keeps_stays_what_it_is(is_sent: bool, calls: Calls) -> None:
    """However often the main process has done with it, or never heard of it."""
    kept: list[torch.Tensor] = []

    def keeps(samples: Any) -> Any:
        kept.append(default_collate(samples))
        assert all(torch.equal(one, numbers(number)) for number, one in enumerate(kept))
        return kept[-1] if is_sent else len(kept)

    for number, batch in enumerate(stacked(keeps)):
        assert torch.equal(batch, numbers(number)) if is_sent else batch == number + 1
        del batch
    assert number == 11
    assert calls.count == 0


def test_what_a_worker_sends_again_is_another(calls: Calls) -> None:
    """The main process lets go of each for itself."""
    kept: list[torch.Tensor] = []

    def repeats(samples: Any) -> Any:
        kept.append(default_collate(samples))
        return kept[-1], kept[0]

    firsts = [first for _, first in stacked(repeats)]
    assert len({first.data_ptr() for first in firsts}) == 12
    assert all(torch.equal(first, numbers(0)) for first in firsts)
    for _, first in stacked(repeats):
        assert torch.equal(first, numbers(0))
        del first


MADE: dict[str, Any] = {
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


@pytest.mark.parametrize("made", MADE)
def test_whatever_is_made_of_what_was_stacked_arrives(
    made: str, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its place is used again: there is room for less than comes."""
    monkeypatch.setattr(_handover, "STRIP_BYTES", 1 << 20)
    make = MADE[made]
    loader = stacked(lambda samples: make(default_collate(samples)), persistent_workers=True)
    for _ in range(3):
        for number, batch in enumerate(loader):
            assert is_same(batch, make(numbers(number).contiguous())), number
            if made == "twice":
                assert batch[0] is batch[1]["again"]
            del batch
        assert number == 11
    assert calls.count == 0


def test_an_error_after_stacking_costs_no_room(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_handover, "STRIP_BYTES", 160 << 10)

    def fails(samples: Any) -> Any:
        batch = default_collate(samples)
        if (int(batch[0, 0]) // 8) % 2:
            raise ValueError("odd")
        return batch

    batches = iter(stacked(fails))
    for number in range(12):
        if number % 2:
            with pytest.raises(ValueError, match="odd"):
                next(batches)
        else:
            assert torch.equal(next(batches), numbers(number))
    assert calls.count == 0


def test_without_room_workers_stack_in_memory_of_their_own(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in that of ``/dev/shm``, of which there may be little."""
    monkeypatch.setattr(_handover, "STRIP_BYTES", 128 << 10)
    kept = [*stacked(default_collate)]
    assert all(torch.equal(batch, numbers(number)) for number, batch in enumerate(kept))
    places = [lies_in(batch.data_ptr()) == OF_WORKERS for batch in kept]
    assert places == [True] * 3 + [False] * 9
    assert calls.count == 0


def test_so_they_do_without_memory_to_share(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(name: str) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "memfd_create", refuses)
    with pytest.warns(RuntimeWarning, match="no memory to share with workers"):
        batches = [*stacked(default_collate)]
    assert all(torch.equal(batch, numbers(number)) for number, batch in enumerate(batches))
    assert calls.count == 0


class Nested(data.Dataset[Any]):
    """Structures of large and small tensors, arrays and numbers."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        deep = (torch.full((600, 2), index, dtype=torch.bfloat16), np.full(700, index, np.uint8))
        return {"number": index, "deep": [deep], "few": torch.ones(3), "text": f"{index}"}


def test_structures_are_stacked_in_many_places(calls: Calls) -> None:
    made = Nested()
    for number, batch in enumerate(stacked(default_collate, made, workers=2)):
        expected = default_collate([made[8 * number + row] for row in range(8)])
        assert is_same(batch, expected)
        for tensor in batch["deep"][0]:
            assert lies_in(tensor.data_ptr()) == OF_WORKERS
    assert number == 3
    assert calls.count == 0, "not even for the few"


def test_what_pytorch_makes_is_replaced_only_while_batches_are_collated(calls: Calls) -> None:
    """And in no other thread."""
    before = torch.UntypedStorage._new_shared

    class Stacks(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            assert torch.UntypedStorage._new_shared == before
            return super().__getitem__(index)

    def in_a_thread(samples: Any) -> Any:
        assert torch.UntypedStorage._new_shared != before
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(default_collate, samples).result()

    for number, batch in enumerate(stacked(in_a_thread, Stacks())):
        assert torch.equal(batch, numbers(number))
    assert calls.count == 12


def test_what_was_replaced_is_put_back() -> None:
    def fails(length: int) -> None:
        raise ValueError

    assert "_new_shared" not in vars(torch.UntypedStorage), "it is inherited"
    with pytest.raises(ValueError), _stacking.stacking_into(fails):  # noqa: PT011
        torch.UntypedStorage._new_shared(1)  # type: ignore[no-untyped-call]
    assert "_new_shared" not in vars(torch.UntypedStorage)


def test_only_the_whole_of_a_place_is_sent_as_it_lies() -> None:
    places = _handover.Places(np.zeros(1 << 20, np.uint8))
    memory = places.reserve(50_000)
    assert memory is not None
    begin = memory.ctypes.data
    flag = places.stacked(begin, 50_000)
    assert flag is not None
    assert places.stacked(begin, 40_000) is None
    assert places.stacked(begin + 10_000, 40_000) is None
    places.send_stacked(flag)
    assert places.stacked(begin, 50_000) is None, "and only once"


def test_with_another_pytorch_what_is_stacked_is_copied(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stacking, "SUPPORTED", False)
    for number, batch in enumerate(stacked(default_collate)):
        assert torch.equal(batch, numbers(number))
        assert lies_in(batch.data_ptr()) == OF_WORKERS
    assert calls.count == 12


def test_what_is_replaced_is_known_by_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _stacking.SUPPORTED
    for other in (lambda cls, size, device: None, lambda cls, size, *, device, pinned: None):
        monkeypatch.setattr(torch.UntypedStorage, "_new_shared", classmethod(other))
        assert not _stacking._is_supported()
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", None)
    assert not _stacking._is_supported()
