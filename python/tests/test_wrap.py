"""``forebay.wrap``: how often the wrapped dataset is read, and that its items are unchanged."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest
import torch
from harness import CONTENTS, ITEMS
from torch.utils import data

import forebay
from forebay._data.serialization import hash_key, pack, unpack
from forebay._data.wrap import Wrapped
from forebay._native import BlobsByAddress, Catalogue, ForebayError
from forebay._runtime.node import ensure_node
from forebay._runtime.processes import binary
from forebay._runtime.shared_counters import SharedCounters

FORK: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}


class RecordingDataset:
    """A dataset that records its reads, of all processes, in a file."""

    def __init__(self, log: Path, items: list[Any] | None = None, seconds: float = 0.0) -> None:
        self.log, self.seconds = log, seconds
        self.items = CONTENTS if items is None else items
        log.touch()

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        with self.log.open("a") as log:
            log.write(f"{index}\n")
        time.sleep(self.seconds)
        return self.items[index]

    def reads(self) -> Counter[int]:
        """Number of reads of each item since the last call."""
        reads = Counter(map(int, self.log.read_text().split()))
        self.log.write_text("")
        return reads


class Database(RecordingDataset):
    """A dataset with ``__getitems__``."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


ONCE = Counter(range(ITEMS))
NEVER = Counter[int]()


@pytest.fixture
def recorded(tmp_path: Path) -> RecordingDataset:
    return RecordingDataset(tmp_path / "reads")


def sorted_items(loader: Iterable[Any]) -> list[Any]:
    return sorted(item for batch in loader for item in batch)


def torch_loader(dataset: Wrapped, **options: Any) -> Iterable[Any]:
    return data.DataLoader(dataset, collate_fn=list, **options)


def forebay_loader(dataset: Wrapped, **options: Any) -> Iterable[Any]:
    return forebay.DataLoader(dataset, collate_fn=list, **options)


def in_processes(count: int, act: Callable[[int], None]) -> None:
    """Call ``act`` in several forked processes at once; all must succeed."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=act, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def claims_held(dataset: Wrapped) -> int:
    held: int = dataset.stats()["node"]["claims_held"]
    return held


def test_items_are_indexed_like_a_list(recorded: RecordingDataset) -> None:
    dataset = forebay.wrap(recorded, name="list")
    assert len(dataset) == ITEMS
    for _ in range(2):
        assert dataset[0] == CONTENTS[0]
        assert dataset[-1] == CONTENTS[-1]
        assert dataset[7] == b""
        assert dataset.__getitems__([5, 5, -2, 0]) == [CONTENTS[at] for at in (5, 5, -2, 0)]
    assert recorded.reads() == Counter([0, ITEMS - 1, 7, 5, ITEMS - 2])
    assert list(dataset) == CONTENTS
    assert recorded.reads() == ONCE - Counter([0, ITEMS - 1, 7, 5, ITEMS - 2])
    for outside in (ITEMS, -ITEMS - 1):
        with pytest.raises(IndexError, match="of 203"):
            dataset[outside]
    with pytest.raises(TypeError):
        dataset["0"]  # type: ignore[index]
    counted = dataset.stats()
    assert counted["items"] == counted["hits"] + counted["read"]
    assert counted["read"] == counted["first_reads"] == ITEMS


@pytest.mark.parametrize("make", [torch_loader, forebay_loader])
@pytest.mark.parametrize("workers", [{}, FORK], ids=["alone", "fork"])
@pytest.mark.parametrize("kind", [RecordingDataset, Database])
def test_the_second_epoch_reads_nothing(
    tmp_path: Path, make: Any, workers: Any, kind: type[RecordingDataset]
) -> None:
    """Promise 3: resident items are not read again."""
    inner = kind(tmp_path / "reads")
    dataset = forebay.wrap(inner, name="epochs", verify=0)
    loader = make(dataset, batch_size=16, shuffle=True, **workers)
    assert sorted_items(loader) == sorted(CONTENTS)
    assert inner.reads() == ONCE
    assert sorted_items(loader) == sorted(CONTENTS)
    assert inner.reads() == NEVER
    counted = dataset.stats()
    assert (counted["items"], counted["hits"], counted["fallbacks"]) == (2 * ITEMS, ITEMS, 0)
    # A later job.
    again = forebay.wrap(inner, name="epochs", verify=0)
    assert sorted_items(make(again, batch_size=50, **workers)) == sorted(CONTENTS)
    assert inner.reads() == NEVER
    assert claims_held(again) == 0


def by_content(index: int) -> tuple[str, int, bytes]:
    return "item", index, CONTENTS[index][:20]


def test_spawned_workers(recorded: RecordingDataset) -> None:
    # One worker: each imports torch again, which takes seconds.
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn"}
    dataset = forebay.wrap(recorded, by_content)
    loader = forebay.DataLoader(dataset, 16, True, collate_fn=list, **options)
    assert sorted_items(loader) == sorted(CONTENTS)
    assert recorded.reads() == ONCE
    assert dataset.stats()["items"] == ITEMS, "counted in the worker"
    loader = forebay.DataLoader(dataset, 16, True, order="substitute", collate_fn=list, **options)
    assert sorted_items(loader) == sorted(CONTENTS)
    assert sum(recorded.reads().values()) == loader.stats()["probes"] * 16


@pytest.mark.parametrize("jobs", [2, 4])
def test_several_jobs_read_each_item_once_even_in_the_first_epoch(
    tmp_path: Path, jobs: int
) -> None:
    """Promise 3: a job waits for an item that another one is reading."""
    recorded = RecordingDataset(tmp_path / "reads", CONTENTS[8:68], seconds=0.005)
    directory = tmp_path / "node"

    def job(number: int) -> None:
        dataset = forebay.wrap(recorded, name="jobs", cache=directory / "node.sock", verify=0)
        # The same order at the same time is the worst case.
        for _ in range(2):
            assert sorted_items(forebay_loader(dataset, batch_size=16)) == sorted(CONTENTS[8:68])
        counted = dataset.stats()
        assert counted["items"] == counted["hits"] + counted["read"] == 120
        assert counted["fallbacks"] == counted["changed"] == 0

    # The second time the node is empty, but the catalogue has all items.
    for _ in range(2):
        with harness.node(directory):
            in_processes(jobs, job)
            assert recorded.reads() == Counter(range(60))
            dataset = forebay.wrap(recorded, name="jobs", cache=directory / "node.sock", verify=0)
            assert claims_held(dataset) == 0
        shutil.rmtree(directory / "blobs")


ITEMS_OF_ALL_KINDS: list[Any] = [
    b"bytes",
    bytearray(b"more bytes"),
    "text",
    17,
    None,
    {"image": np.arange(12, dtype=np.float32).reshape(3, 4), "label": 3},
    (torch.arange(10), torch.eye(3, dtype=torch.bfloat16)),
    torch.tensor(3.5),
    torch.empty(0, 3),
    torch.arange(6).reshape(2, 3).t(),
    torch.tensor([True, False]),
    torch.tensor([1 + 2j]),
    torch.nn.Parameter(torch.ones(2)),
]


def is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        attributes = (one.dtype, one.shape, one.requires_grad)
        others = (other.dtype, other.shape, other.requires_grad)
        return attributes == others and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple):
        return all(map(is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    return bool(one == other)


def test_items_of_all_kinds_are_cached_unchanged(tmp_path: Path) -> None:
    recorded = RecordingDataset(tmp_path / "reads", ITEMS_OF_ALL_KINDS)
    dataset = forebay.wrap(recorded, name="kinds")
    count = len(recorded)
    for _ in range(2):
        found = dataset.__getitems__(range(count))
        assert all(map(is_same, found, ITEMS_OF_ALL_KINDS))
    assert recorded.reads() == Counter(range(count))
    one, other = dataset.__getitems__([5, 5])
    assert one is not other, "a change of one does not affect the other"


def test_equal_tensors_are_pickled_to_equal_bytes() -> None:
    plain = ITEMS_OF_ALL_KINDS[:-1]
    packed = [pack(item) for item in plain]
    assert packed == [pack(pickle.loads(pickle.dumps(item))) for item in plain]
    assert all(is_same(unpack(*one), item) for one, item in zip(packed, plain, strict=True))


def test_a_transform_runs_on_every_read(recorded: RecordingDataset) -> None:
    dataset = forebay.wrap(recorded, name="transform", transform=len)
    assert [dataset[3] for _ in range(2)] == [len(CONTENTS[3])] * 2
    assert recorded.reads() == Counter([3])


def test_an_item_longer_than_a_frame(tmp_path: Path) -> None:
    large = os.urandom(35 << 20)
    recorded = RecordingDataset(tmp_path / "reads", [b"short", large])
    dataset = forebay.wrap(recorded, name="large")
    for _ in range(2):
        assert dataset.__getitems__([0, 1]) == [b"short", large]
    assert recorded.reads() == Counter([0, 1])


def test_names_and_keys_identify_items(recorded: RecordingDataset, tmp_path: Path) -> None:
    other = RecordingDataset(tmp_path / "others", CONTENTS[::-1])
    assert forebay.wrap(recorded, name="one")[3] == CONTENTS[3]
    assert forebay.wrap(other, name="other")[3] == CONTENTS[-4], "an unrelated key"
    # The same keys at other indices are the same items.
    forward = forebay.wrap(recorded, lambda index: f"item {index}", name="both", verify=0)
    backward = forebay.wrap(other, lambda index: f"item {ITEMS - 1 - index}", name="both", verify=0)
    assert list(forward) == CONTENTS
    other.reads()
    assert list(backward) == CONTENTS[::-1]
    assert other.reads() == NEVER
    with pytest.raises(ValueError, match=r"give key=\.\.\., a function"):
        forebay.wrap(recorded)
    with pytest.raises(TypeError, match="map-style dataset"):
        forebay.wrap(iter([1, 2]), name="x")
    with pytest.raises(TypeError, match="give a function of an item's index"):
        forebay.wrap(recorded, "path")  # type: ignore[call-overload]


def test_two_items_with_one_key_are_an_error(recorded: RecordingDataset) -> None:
    dataset = forebay.wrap(recorded, lambda index: index // 2, name="pairs")
    assert dataset[4] == CONTENTS[4]
    assert dataset[4] == CONTENTS[4]
    with pytest.raises(ValueError, match="items 4 and 5 have the same key 2"):
        dataset[5]
    # A later job gets the error, too.
    again = forebay.wrap(recorded, lambda index: index // 2, name="pairs")
    with pytest.raises(ValueError, match="items 4 and 5 have the same key 2"):
        again.__getitems__([1, 5])
    distinct = forebay.wrap(recorded, lambda index: index, name="distinct")
    distinct.index()
    distinct._items.key = lambda index: min(index, ITEMS - 2)
    with pytest.raises(ValueError, match="items 201 and 202 have the same key 201"):
        forebay.DataLoader(distinct, shuffle=True, order="substitute")


@pytest.mark.parametrize("kind", [RecordingDataset, Database])
def test_two_items_with_one_key_in_one_batch_are_an_error(
    tmp_path: Path, kind: type[RecordingDataset]
) -> None:
    """Promise 1: never wrong bytes, also in the first epoch."""
    pairs = forebay.wrap(kind(tmp_path / "reads"), lambda index: index // 2, name="pairs")
    with pytest.raises(ValueError, match="have the same key"):
        sorted_items(forebay_loader(pairs, batch_size=4))
    with pytest.raises(ValueError, match="have the same key"):
        pairs.index()
    assert claims_held(pairs) == 0


def test_two_items_with_one_key_in_two_processes_are_an_error(
    tmp_path: Path,
) -> None:
    """Promise 1: a process that waits for the other item of its key does not get it."""
    recorded = RecordingDataset(tmp_path / "reads", seconds=0.5)
    dataset = forebay.wrap(recorded, lambda index: 0, name="one key")
    errors = tmp_path / "errors"

    def read(item: int) -> None:
        try:
            assert dataset[item] == CONTENTS[item]
        except ValueError as problem:
            with errors.open("a") as file:
                file.write(f"{problem}\n")

    in_processes(2, read)
    assert errors.read_text().count("have the same key 0") == 1
    assert claims_held(dataset) == 0


@pytest.mark.parametrize("key", [None, [1], {"a": 1}, object(), (1, [2]), np.arange(2)])
def test_invalid_keys_are_refused(recorded: RecordingDataset, key: Any) -> None:
    dataset = forebay.wrap(recorded, lambda index: key, name="bad keys")
    with pytest.raises(TypeError, match="does not identify an item; give a str, bytes, int"):
        dataset[0]
    assert recorded.reads() == NEVER


def test_different_keys_have_different_hashes() -> None:
    keys: list[Any] = ["1", b"1", 1, True, 1.0, (1,), ((1,),), (1, 1), ("1", 1), (1, "1"), ()]
    keys += ["", b"", 0, False, 0.0, -0.0, (None,), ("", ""), ("a", "b"), ("ab",), "\udc80", -1]
    keys += [10**30, "ab", ("a", ("b", "c")), (("a", "b"), "c"), ("a", "b", "c"), float("inf")]
    assert len({hash_key(key) for key in keys}) == len(keys)
    assert hash_key(np.int64(5)) == hash_key(5)
    assert hash_key(("x", 7)).hex().startswith("f17049f0d350db86"), "catalogues have it"


def test_exceptions_of_the_users_code_are_raised(
    tmp_path: Path, recorded: RecordingDataset
) -> None:
    class Broken(LookupError):
        pass

    def key(index: int) -> int:
        if index == 3:
            raise Broken("no such row")
        return index

    dataset = forebay.wrap(recorded, key, name="broken key")
    with pytest.raises(Broken, match="no such row"):
        dataset.__getitems__([1, 2, 3])

    class Failing(Database):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                raise Broken("no such row")
            return super().__getitem__(index)

    failing = forebay.wrap(Failing(tmp_path / "failing"), name="failing")
    for _ in range(2):
        with pytest.raises(Broken, match="no such row"):
            failing.__getitems__([1, 2, 3])
        assert claims_held(failing) == 0, "claims were released"
    assert failing.__getitems__([1, 2]) == CONTENTS[1:3]

    class Short(RecordingDataset):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices[1:]]

    short = forebay.wrap(Short(tmp_path / "short"), name="short")
    with pytest.raises(ValueError, match="gave 2 of 3 items"):
        short.__getitems__([1, 2, 3])
    assert claims_held(short) == 0


class Unpicklable:
    """An object that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("not picklable")


class FailsToUnpickle:
    """An object that cannot be unpickled if an environment variable is set."""

    def __reduce__(self) -> Any:
        return _fails_to_unpickle, ()


def _fails_to_unpickle() -> FailsToUnpickle:
    if "FOREBAY_TEST_UNPICKLE_FAILS" in os.environ:
        raise RuntimeError("cannot unpickle")
    return FailsToUnpickle()


def test_items_that_cannot_be_pickled_are_read_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = RecordingDataset(tmp_path / "reads", [b"plain", Unpicklable()])
    dataset = forebay.wrap(recorded, name="unpicklable")
    with pytest.warns(RuntimeWarning, match=r"item 1 cannot be pickled.*not picklable"):
        assert isinstance(dataset[1], Unpicklable)
    assert dataset[0] == b"plain"
    assert isinstance(dataset.__getitems__([0, 1])[1], Unpicklable)
    assert recorded.reads() == Counter([1, 1, 0])
    inner = RecordingDataset(tmp_path / "fails", [FailsToUnpickle()])
    fails = forebay.wrap(inner, name="fails to unpickle")
    assert isinstance(fails[0], FailsToUnpickle)
    assert isinstance(fails[0], FailsToUnpickle)
    monkeypatch.setenv("FOREBAY_TEST_UNPICKLE_FAILS", "1")
    with pytest.warns(RuntimeWarning, match=r"item 0 cannot be unpickled.*cannot unpickle"):
        assert isinstance(fails[0], FailsToUnpickle)
    assert inner.reads() == Counter([0, 0])


def test_changed_content_of_a_key_is_returned_and_counted(tmp_path: Path) -> None:
    """Promise 1: never wrong bytes."""
    recorded = RecordingDataset(tmp_path / "reads", [b"old", b"unchanged"])
    directory = tmp_path / "node"
    with harness.node(directory):
        dataset = forebay.wrap(recorded, name="changing", cache=directory / "node.sock")
        assert dataset.__getitems__([0, 1]) == [b"old", b"unchanged"]
        recorded.items = [b"new", b"unchanged"]
        assert dataset[0] == b"old", "the same key stands for the same content"
    shutil.rmtree(directory / "blobs")
    with harness.node(directory):
        dataset = forebay.wrap(recorded, name="changing", cache=directory / "node.sock")
        for _ in range(2):
            assert dataset.__getitems__([0, 1]) == [b"new", b"unchanged"]
        counted = dataset.stats()
        assert (counted["changed"], counted["first_reads"]) == (1, 0)
        assert (counted["read"], counted["hits"]) == (2, 2)
        assert claims_held(dataset) == 0


def test_items_with_unstable_pickles_are_correct(tmp_path: Path) -> None:
    class Unstable(RecordingDataset):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index), os.urandom(8)

    directory, recorded = tmp_path / "node", Unstable(tmp_path / "reads")
    for _ in range(3):
        with harness.node(directory):
            dataset = forebay.wrap(
                recorded, name="unstable", cache=directory / "node.sock", verify=0
            )
            found = [dataset.__getitems__(range(20)) for _ in range(2)]
            assert found[0] == found[1]
            assert [item for item, _ in found[0]] == CONTENTS[:20]
            assert recorded.reads() == Counter(range(20))
        shutil.rmtree(directory / "blobs")
    # A new entry replaces the old one.
    assert len(Catalogue(dataset._items.catalogue_path, None)) == 20


def test_without_a_cache_items_are_read_every_time(recorded: RecordingDataset) -> None:
    dataset = forebay.wrap(recorded, name="none", cache=None)
    assert list(dataset) == list(dataset) == CONTENTS
    assert recorded.reads() == ONCE + ONCE
    assert dataset.stats()["node"] is None
    with pytest.raises(forebay.ForebayError, match="needs a cache"):
        dataset.index()


def test_a_missing_node_costs_hits_only(tmp_path: Path, recorded: RecordingDataset) -> None:
    """Promise 5: no cache fault fails or hangs a job."""
    directory = tmp_path / "named"
    with pytest.warns(RuntimeWarning, match="it does not answer"):
        dataset = forebay.wrap(recorded, name="absent", cache=directory / "node.sock")
    assert list(dataset) == CONTENTS
    assert recorded.reads() == ONCE
    assert dataset.stats()["fallbacks"] == ITEMS
    assert len(Catalogue(dataset._items.catalogue_path, None)) == 0, "nothing was pickled"
    with harness.node(directory):
        time.sleep(1.1)  # the backoff after a failed connection
        assert list(dataset) == list(dataset) == CONTENTS
    assert recorded.reads() == ONCE
    assert list(dataset) == CONTENTS, "and without the node again"


@pytest.mark.parametrize("workers", [{}, FORK], ids=["alone", "fork"])
def test_a_node_killed_in_mid_epoch_costs_hits_only(
    tmp_path: Path, recorded: RecordingDataset, workers: Any
) -> None:
    """Promise 5: losing a node in mid-epoch causes no error."""
    directory = tmp_path / "named"
    with harness.node(directory) as node:
        dataset = forebay.wrap(recorded, name="mid-epoch", cache=directory / "node.sock")
        loader = forebay.DataLoader(dataset, 16, True, collate_fn=list, **workers)
        assert sorted_items(loader) == sorted(CONTENTS)
        recorded.reads()
        items, began = list[bytes](), time.monotonic()
        for number, batch in enumerate(loader):
            items += batch
            if number == 3:
                node.kill()
        assert sorted(items) == sorted(CONTENTS)
        assert recorded.reads() <= ONCE
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("found", [False, True])
def test_a_node_that_dies_is_started_again(
    recorded: RecordingDataset, own_node: Path, found: bool
) -> None:
    if found:
        ensure_node(own_node)
    dataset = forebay.wrap(recorded, name="revived")
    first = dataset.__getitems__(range(50))
    pid = harness.listener(own_node)
    harness.kill(pid)
    assert dataset.__getitems__(range(50)) == first == CONTENTS[:50]
    assert harness.listener(own_node) != pid


def test_a_stopped_claim_holder_is_waited_for_until_its_lease_ends(tmp_path: Path) -> None:
    """Promise 5: after a short deadline the item is read without the claim."""
    recorded = RecordingDataset(tmp_path / "reads", CONTENTS[:3])
    directory = tmp_path / "node"
    stuck = RecordingDataset(tmp_path / "stuck", CONTENTS[:3], seconds=600)
    with harness.node(directory, "--claim-lease", "500ms"):
        options: dict[str, Any] = {"name": "stuck", "cache": directory / "node.sock"}
        child = multiprocessing.get_context("fork").Process(
            target=lambda: forebay.wrap(stuck, **options)[1]
        )
        child.start()
        harness.wait_until(lambda: stuck.log.read_text() != "")
        dataset = forebay.wrap(recorded, **options)
        began = time.monotonic()
        assert dataset.__getitems__([0, 1, 2]) == CONTENTS[:3]
        assert time.monotonic() - began < 5
        assert recorded.reads() == Counter(range(3))
        harness.kill(child.pid or 0)
        child.join()


def test_a_signal_handler_interrupts_a_wait(tmp_path: Path) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: Any) -> None:
        raise Alarm

    stuck = RecordingDataset(tmp_path / "stuck", CONTENTS[:3], seconds=600)
    dataset = forebay.wrap(stuck, name="signal")
    child = multiprocessing.get_context("fork").Process(target=lambda: dataset[1])
    child.start()
    harness.wait_until(lambda: stuck.log.read_text() != "")
    before = signal.signal(signal.SIGALRM, ring)
    try:
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Alarm):
            dataset[1]
        assert time.monotonic() - began < 5
    finally:
        signal.signal(signal.SIGALRM, before)
        harness.kill(child.pid or 0)
        child.join()
    stuck.seconds = 0
    assert dataset[1] == CONTENTS[1], "an interrupted connection is replaced"


@pytest.mark.filterwarnings("ignore:DataLoader worker:RuntimeWarning")
def test_killed_workers_cost_only_the_items_they_were_reading(tmp_path: Path) -> None:
    recorded = RecordingDataset(tmp_path / "reads", seconds=0.002)
    dataset = forebay.wrap(recorded, name="killed")
    loader = forebay.DataLoader(dataset, 16, True, collate_fn=list, **FORK)
    items = list[bytes]()
    for number, batch in enumerate(loader):
        items += batch
        if number in (2, 6):
            for worker in multiprocessing.active_children()[:1]:
                harness.kill(worker.pid or 0)
    assert sorted(items) == sorted(CONTENTS)
    assert loader.stats()["workers_restarted"] >= 1
    reads = recorded.reads()
    assert set(reads) == set(range(ITEMS))
    assert sum(reads.values()) <= ITEMS + 2 * 2, (
        "one that each was reading, and one after the restart"
    )
    assert sorted_items(loader) == sorted(CONTENTS)
    assert recorded.reads() == NEVER


def test_jobs_killed_at_any_moment_leave_correct_items(tmp_path: Path) -> None:
    recorded = RecordingDataset(tmp_path / "reads")
    context = multiprocessing.get_context("fork")
    forebay.wrap(recorded, name="killed jobs", verify=0)[0]

    def job() -> None:
        list(forebay.wrap(recorded, name="killed jobs", verify=0))

    for round_ in range(8):
        process = context.Process(target=job)
        process.start()
        time.sleep(0.01 * (round_ + 1))
        harness.kill(process.pid or 0)
        process.join()
    dataset = forebay.wrap(recorded, name="killed jobs", verify=0)
    assert list(dataset) == list(dataset) == CONTENTS
    reads = recorded.reads()
    assert set(reads) == set(range(ITEMS))
    assert sum(reads.values()) <= ITEMS + 2 * 8
    assert dataset.stats()["changed"] == 0


def test_threads_have_their_own_connections(recorded: RecordingDataset) -> None:
    dataset = forebay.wrap(recorded, name="threads")
    found: list[Any] = []

    def read() -> None:
        found.append(dataset.__getitems__(range(100)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENTS[:100]] * 4
    assert recorded.reads() == Counter(range(100))
    counted = dataset.stats()
    assert counted["items"] == counted["hits"] + counted["read"] == 400


def test_a_cache_that_is_too_small_returns_correct_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [bytes([number]) * 200_000 for number in range(120)]
    recorded = RecordingDataset(tmp_path / "reads", large)
    monkeypatch.setenv("FOREBAY_CAPACITY", "10MB")
    dataset = forebay.wrap(recorded, name="small")
    loader = forebay_loader(dataset, batch_size=8, shuffle=True)
    for _ in range(3):
        assert sorted_items(loader) == large
        reads = recorded.reads()
        assert set(reads.values()) == {1}
    assert dataset.stats()["hits"] > 0
    assert dataset.stats()["changed"] == 0


def test_only_the_user_can_access_a_catalogue(recorded: RecordingDataset) -> None:
    dataset = forebay.wrap(recorded, name="private/../../etc")
    assert dataset[0] == CONTENTS[0]
    path = dataset._items.catalogue_path
    assert path.parent.name == "catalogues"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    with pytest.raises(forebay.ForebayError, match="chmod 600"):
        forebay.wrap(recorded, name="private/../../etc")


def test_a_private_namespace_shares_nothing_with_the_public_one(
    tmp_path: Path, recorded: RecordingDataset
) -> None:
    key, directory = tmp_path / "team.key", tmp_path / "node"
    subprocess.run([binary(), "namespace", "new", str(key)], check=True, capture_output=True)
    with harness.node(directory, "--namespace-key", str(key)):
        public = forebay.wrap(recorded, name="shared", cache=directory / "node.sock")
        team = forebay.wrap(
            recorded, name="shared", cache=directory / "node.sock", namespace_key=key
        )
        for dataset in (public, team, public, team):
            assert dataset.__getitems__(range(20)) == CONTENTS[:20]
        assert recorded.reads() == Counter(list(range(20)) * 2)
        outsider = BlobsByAddress(directory / "node.sock", None, None, "outsider")
        blobs = [request.blob for request in team._items.requests(range(20))]
        assert team._items.blobs.get(blobs) == CONTENTS[:20]
        assert outsider.get(blobs) == [None] * 20


def test_a_cluster_caches_wrapped_items(tmp_path: Path, recorded: RecordingDataset) -> None:
    sockets = [tmp_path / name / "node.sock" for name in "ab"]
    config = tmp_path / "nodes.toml"
    config.write_text(
        "".join(
            f'[[nodes]]\nname = "{socket.parent.name}"\nendpoint = "{socket}"\n'
            for socket in sockets
        )
    )
    config.chmod(0o600)
    arguments = ["--config", str(config), "--name"]
    one = harness.node(tmp_path / "a", *arguments, "a")
    with one as node, harness.node(tmp_path / "b", *arguments, "b"):
        dataset = forebay.wrap(recorded, name="ring", cache=sockets[1])
        assert list(dataset) == list(dataset) == CONTENTS
        assert recorded.reads() == ONCE
        assert dataset.stats()["node"]["puts"] == ITEMS, "on both nodes together"
        node.kill()
        node.wait()
        assert list(dataset) == CONTENTS
        reads = recorded.reads()
        assert 0 < sum(reads.values()) < ITEMS, "the other node still has its items"


def test_substitution_needs_an_index_of_all_items(recorded: RecordingDataset) -> None:
    dataset = forebay.wrap(recorded, name="substitute")
    dataset.__getitems__(range(3))
    with pytest.raises(forebay.ForebayError, match=r"200 of 203 items have never.*call index\(\)"):
        forebay.DataLoader(dataset, 16, True, order="substitute")
    dataset.index()
    assert recorded.reads() == ONCE
    dataset.index()
    assert recorded.reads() == NEVER
    loader = forebay.DataLoader(dataset, 16, True, order="substitute", collate_fn=list)
    epochs = [[item for batch in loader for item in batch] for _ in range(3)]
    for items in epochs:
        assert sorted(items) == sorted(CONTENTS)
    assert epochs[0] != epochs[1]
    assert sum(recorded.reads().values()) == dataset.stats()["read"] - ITEMS
    counted = loader.stats()
    assert counted["reports"] > 0
    assert counted["pinned_share"] == 1.0
    assert counted["shuffle_quality"]["neighbours"] > 0.5


def test_substitution_with_workers(recorded: RecordingDataset) -> None:
    dataset = forebay.wrap(recorded, name="substitute with workers")
    dataset.index()
    assert recorded.reads() == ONCE
    loader = forebay.DataLoader(dataset, 16, True, order="substitute", collate_fn=list, **FORK)
    for _ in range(2):
        assert sorted_items(loader) == sorted(CONTENTS)
    assert sum(recorded.reads().values()) <= loader.stats()["probes"] * 16


def test_copies_do_not_fence_each_other(recorded: RecordingDataset) -> None:
    dataset = forebay.wrap(recorded, name="copies")
    dataset.index()
    loaders = [
        forebay.DataLoader(one, 16, True, order="substitute", collate_fn=list)
        for one in (dataset, copy.deepcopy(dataset))
    ]
    for _ in range(2):
        for loader in loaders:
            assert Counter(item for batch in loader for item in batch) == Counter(CONTENTS)


def test_substitution_with_a_cache_that_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items outside the keep set are read uncached and do not evict others."""
    large = [bytes([number]) * 100_000 for number in range(200)]
    recorded = RecordingDataset(tmp_path / "reads", large)
    monkeypatch.setenv("FOREBAY_CAPACITY", "12MB")
    dataset = forebay.wrap(recorded, name="rotation")
    dataset.index()
    recorded.reads()
    loader = forebay.DataLoader(dataset, 8, True, order="substitute", collate_fn=list)
    for _ in range(3):
        assert sorted_items(loader) == large
    counted = dataset.stats()
    assert counted["uncached"] > 0
    assert counted["fallbacks"] == 0
    recorded.reads()
    assert sorted_items(loader) == large
    reads = recorded.reads()
    assert set(reads.values()) == {1}
    assert sum(reads.values()) < 160, "some are pinned"


def test_a_loader_is_resumed_from_a_checkpoint(recorded: RecordingDataset) -> None:
    def make(**options: Any) -> forebay.DataLoader:
        dataset = forebay.wrap(recorded, name="checkpoint")
        generator = torch.Generator().manual_seed(5)
        return forebay.DataLoader(
            dataset, 16, True, collate_fn=list, generator=generator, **options
        )

    whole = list(make())
    for options in ({}, FORK):
        loader = make(**options)
        epoch = iter(loader)
        begun = [next(epoch) for _ in range(5)]
        again = make(**options)
        again.load_state_dict(loader.state_dict())
        assert begun + list(again) == whole
    other = forebay.DataLoader(forebay.wrap(recorded, name="other"), 16, True, collate_fn=list)
    with pytest.raises(forebay.StateError, match="wrapped checkpoint of 203 items"):
        other.load_state_dict(loader.state_dict())


def test_the_default_order_is_pytorchs(recorded: RecordingDataset) -> None:
    dataset = forebay.wrap(recorded, name="order")
    orders = []
    for make in (torch_loader, forebay_loader):
        torch.manual_seed(11)
        orders.append([list(make(dataset, batch_size=5, shuffle=True)), torch.rand(3).tolist()])
    assert orders[0] == orders[1]
    with pytest.raises(ValueError, match="handle errors of a wrapped dataset in its own code"):
        forebay.DataLoader(dataset, on_error="skip")
    loader = forebay.DataLoader(dataset, 5, collate_fn=list)
    next(iter(loader))
    counted = loader.stats()
    assert (counted["items"], counted["skipped"]["count"], counted["shuffle_quality"]) == (
        5,
        0,
        None,
    )
    assert counted["hit_share"] == pytest.approx(208 / 411)


def test_counters_outlive_the_processes_that_count(tmp_path: Path) -> None:
    counters = SharedCounters(["a", "b"])
    counters.add(a=1, b=2)
    in_processes(3, lambda number: counters.add(a=10, b=number))
    thread = threading.Thread(target=counters.add, kwargs={"a": 100})
    thread.start()
    thread.join()
    assert counters.totals() == {"a": 131, "b": 5}
    same = pickle.loads(pickle.dumps(counters))
    same.add(b=1)
    assert counters.totals() == same.totals() == {"a": 131, "b": 6}
    # A copy of counters that are gone begins at 0.
    again = pickle.loads(pickle.dumps(SharedCounters(["a", "b"])))
    again.add(b=1)
    assert again.totals() == {"a": 0, "b": 1}


# Promise 1, for keys: two scripts with the same class name and relative keys shared items once.
def test_items_of_another_dataset_with_the_same_name_are_an_error(tmp_path: Path) -> None:
    mine = RecordingDataset(tmp_path / "mine", CONTENTS[:20])
    theirs = RecordingDataset(tmp_path / "theirs", CONTENTS[20:40])
    assert list(forebay.wrap(theirs, lambda index: f"{index}.jpg", name="photos"))
    dataset = forebay.wrap(mine, lambda index: f"{index}.jpg", name="photos")
    with pytest.raises(ForebayError, match=r"another item for key '7.jpg' of 'photos'.*name="):
        dataset[7]
    trusting = forebay.wrap(mine, lambda index: f"{index}.jpg", name="photos", verify=0)
    assert trusting[7] == CONTENTS[27], "the check is what protects"


def test_each_process_compares_a_few_hits_of_earlier_jobs(recorded: RecordingDataset) -> None:
    first = forebay.wrap(recorded, name="compared")
    list(first)
    list(first)
    assert first.stats()["verified"] == 0, "what a job has recorded itself is not compared"
    assert recorded.reads() == ONCE
    again = forebay.wrap(recorded, name="compared", verify=5)
    for _ in range(2):
        assert list(again) == CONTENTS
    assert again.stats()["verified"] == 5
    assert sum(recorded.reads().values()) == 5


def test_a_dataset_that_differs_from_read_to_read_is_a_warning() -> None:
    class Random(list[int]):
        def __getitem__(self, index: Any) -> Any:
            return random.random()

    first = forebay.wrap(Random(range(5)), name="random")[3]
    again = forebay.wrap(Random(range(5)), name="random")
    with pytest.warns(RuntimeWarning, match="differs from read to read.*transform"):
        assert again[3] == first


def test_classes_whose_name_is_not_unique_need_a_name(recorded: RecordingDataset) -> None:
    script = type("Photos", (RecordingDataset,), {"__module__": "__main__"})
    photos = script(recorded.log)
    for dataset in (photos, [1, 2, 3]):
        with pytest.raises(ValueError, match="which identifies this dataset"):
            forebay.wrap(dataset, lambda index: index)
    assert forebay.wrap(photos, lambda index: index, name="photos", cache=None)[0] == CONTENTS[0]
    with pytest.raises(ValueError, match="verify=-1"):
        forebay.wrap(photos, name="photos", verify=-1)
