"""Any dataset, cached: how often the user's code is asked, and that what comes is what it gave."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
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
from forebay._native import Catalogue, Picks
from forebay._node import ensure_node
from forebay._packing import hashed, pack, unpack
from forebay._processes import binary
from forebay._tally import Tally
from forebay._wrap import Wrapped

FORK: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}


class Slow:
    """A dataset that notes whenever it is read, in all processes."""

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
        """How often each item was read since this was last asked."""
        reads = Counter(map(int, self.log.read_text().split()))
        self.log.write_text("")
        return reads


class Database(Slow):
    """One that is asked for many rows at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


ONCE = Counter(range(ITEMS))
NEVER = Counter[int]()


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    return Slow(tmp_path / "reads")


def in_order(loader: Iterable[Any]) -> list[Any]:
    return sorted(item for batch in loader for item in batch)


def torch_loader(dataset: Wrapped, **options: Any) -> Iterable[Any]:
    return data.DataLoader(dataset, collate_fn=list, **options)  # type: ignore[arg-type]


def our_loader(dataset: Wrapped, **options: Any) -> Iterable[Any]:
    return forebay.DataLoader(dataset, collate_fn=list, **options)


def in_processes(count: int, act: Callable[[int], None]) -> None:
    """Do something in several forked processes at once; all of them have to succeed."""
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


def test_items_are_read_like_those_of_a_list(slow: Slow) -> None:
    dataset = forebay.wrap(slow, name="list")
    assert len(dataset) == ITEMS
    for _ in range(2):
        assert dataset[0] == CONTENTS[0]
        assert dataset[-1] == CONTENTS[-1]
        assert dataset[7] == b""
        assert dataset.__getitems__([5, 5, -2, 0]) == [CONTENTS[at] for at in (5, 5, -2, 0)]
    assert slow.reads() == Counter([0, ITEMS - 1, 7, 5, ITEMS - 2])
    assert list(dataset) == CONTENTS
    assert slow.reads() == ONCE - Counter([0, ITEMS - 1, 7, 5, ITEMS - 2])
    for outside in (ITEMS, -ITEMS - 1):
        with pytest.raises(IndexError, match="of 203"):
            dataset[outside]
    with pytest.raises(TypeError):
        dataset["0"]  # type: ignore[index]
    counted = dataset.stats()
    assert counted["items"] == counted["hits"] + counted["read"]
    assert counted["read"] == counted["first_sights"] == ITEMS


@pytest.mark.parametrize("make", [torch_loader, our_loader])
@pytest.mark.parametrize("workers", [{}, FORK], ids=["alone", "fork"])
@pytest.mark.parametrize("kind", [Slow, Database])
def test_the_second_epoch_reads_nothing(
    tmp_path: Path, make: Any, workers: Any, kind: type[Slow]
) -> None:
    """Promise 3: what is resident is not read again."""
    inner = kind(tmp_path / "reads")
    dataset = forebay.wrap(inner, name="epochs")
    loader = make(dataset, batch_size=16, shuffle=True, **workers)
    assert in_order(loader) == sorted(CONTENTS)
    assert inner.reads() == ONCE
    assert in_order(loader) == sorted(CONTENTS)
    assert inner.reads() == NEVER
    counted = dataset.stats()
    assert (counted["items"], counted["hits"], counted["fallbacks"]) == (2 * ITEMS, ITEMS, 0)
    # Another job, later.
    again = forebay.wrap(inner, name="epochs")
    assert in_order(make(again, batch_size=50, **workers)) == sorted(CONTENTS)
    assert inner.reads() == NEVER
    assert claims_held(again) == 0


def by_content(index: int) -> tuple[str, int, bytes]:
    return "item", index, CONTENTS[index][:20]


def test_spawned_workers(slow: Slow) -> None:
    # One is enough: it imports torch anew, which takes seconds.
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn"}
    dataset = forebay.wrap(slow, by_content)
    loader = forebay.DataLoader(dataset, 16, True, collate_fn=list, **options)
    assert in_order(loader) == sorted(CONTENTS)
    assert slow.reads() == ONCE
    assert dataset.stats()["items"] == ITEMS, "those of the worker"
    loader = forebay.DataLoader(dataset, 16, True, order="substitute", collate_fn=list, **options)
    assert in_order(loader) == sorted(CONTENTS)
    assert sum(slow.reads().values()) == loader.stats()["probes"] * 16


@pytest.mark.parametrize("jobs", [2, 4])
def test_several_jobs_read_each_item_once_even_in_the_first_epoch(
    tmp_path: Path, jobs: int
) -> None:
    """Promise 3: what somebody is reading is waited for."""
    slow, place = Slow(tmp_path / "reads", CONTENTS[8:68], seconds=0.005), tmp_path / "node"

    def job(number: int) -> None:
        dataset = forebay.wrap(slow, name="jobs", cache=place / "node.sock")
        # The same order at the same time is the worst that can be.
        for _ in range(2):
            assert in_order(our_loader(dataset, batch_size=16)) == sorted(CONTENTS[8:68])
        counted = dataset.stats()
        assert counted["items"] == counted["hits"] + counted["read"] == 120
        assert counted["fallbacks"] == counted["changed"] == 0

    # And once more if the node has lost everything, though all is known.
    for _ in range(2):
        with harness.node(place):
            in_processes(jobs, job)
            assert slow.reads() == Counter(range(60))
            dataset = forebay.wrap(slow, name="jobs", cache=place / "node.sock")
            assert claims_held(dataset) == 0
        shutil.rmtree(place / "blobs")


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
        alike = (one.dtype, one.shape, one.requires_grad)
        return alike == (other.dtype, other.shape, other.requires_grad) and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple):
        return all(map(is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    return bool(one == other)


def test_items_of_all_kinds_come_back_as_they_were(tmp_path: Path) -> None:
    slow = Slow(tmp_path / "reads", ITEMS_OF_ALL_KINDS)
    dataset = forebay.wrap(slow, name="kinds")
    count = len(slow)
    for _ in range(2):
        found = dataset.__getitems__(range(count))
        assert all(map(is_same, found, ITEMS_OF_ALL_KINDS))
    assert slow.reads() == Counter(range(count))
    one, other = dataset.__getitems__([5, 5])
    assert one is not other, "whoever changes an item changes its own"


def test_the_same_tensors_are_the_same_bytes_wherever_they_lie() -> None:
    plain = ITEMS_OF_ALL_KINDS[:-1]
    packed = [pack(item) for item in plain]
    assert packed == [pack(pickle.loads(pickle.dumps(item))) for item in plain]
    assert all(is_same(unpack(*one), item) for one, item in zip(packed, plain, strict=True))


def test_a_transform_sees_every_item_anew(slow: Slow) -> None:
    dataset = forebay.wrap(slow, name="transform", transform=len)
    assert [dataset[3] for _ in range(2)] == [len(CONTENTS[3])] * 2
    assert slow.reads() == Counter([3])


def test_an_item_longer_than_a_frame(tmp_path: Path) -> None:
    large = os.urandom(35 << 20)
    slow = Slow(tmp_path / "reads", [b"short", large])
    dataset = forebay.wrap(slow, name="large")
    for _ in range(2):
        assert dataset.__getitems__([0, 1]) == [b"short", large]
    assert slow.reads() == Counter([0, 1])


def test_names_and_keys_say_what_an_item_is(slow: Slow, tmp_path: Path) -> None:
    other = Slow(tmp_path / "others", CONTENTS[::-1])
    assert forebay.wrap(slow, name="one")[3] == CONTENTS[3]
    assert forebay.wrap(other, name="other")[3] == CONTENTS[-4], "another name, another item"
    # The same keys at other indices are the same items.
    forward = forebay.wrap(slow, lambda index: f"item {index}", name="both")
    backward = forebay.wrap(other, lambda index: f"item {ITEMS - 1 - index}", name="both")
    assert list(forward) == CONTENTS
    other.reads()
    assert list(backward) == CONTENTS[::-1]
    assert other.reads() == NEVER
    with pytest.raises(ValueError, match=r"give key=\.\.\., a function"):
        forebay.wrap(slow)
    with pytest.raises(TypeError, match="map-style dataset"):
        forebay.wrap(iter([1, 2]), name="x")
    with pytest.raises(TypeError, match="a function of an item's index"):
        forebay.wrap(slow, "path")  # type: ignore[arg-type]


def test_two_items_with_one_key_are_an_error_and_never_mixed_up(slow: Slow) -> None:
    dataset = forebay.wrap(slow, lambda index: index // 2, name="pairs")
    assert dataset[4] == CONTENTS[4]
    assert dataset[4] == CONTENTS[4]
    with pytest.raises(ValueError, match="items 4 and 5 have the same key 2"):
        dataset[5]
    # Whoever comes later is told as well.
    again = forebay.wrap(slow, lambda index: index // 2, name="pairs")
    with pytest.raises(ValueError, match="items 4 and 5 have the same key 2"):
        again.__getitems__([1, 5])
    apart = forebay.wrap(slow, lambda index: index, name="apart")
    apart.learn()
    apart._items.key = lambda index: min(index, ITEMS - 2)
    with pytest.raises(ValueError, match="items 201 and 202 have the same key 201"):
        forebay.DataLoader(apart, shuffle=True, order="substitute")


@pytest.mark.parametrize("kind", [Slow, Database])
def test_items_with_one_key_that_come_together_are_no_less_an_error(
    tmp_path: Path, kind: type[Slow]
) -> None:
    """Promise 1: never wrong bytes, in the first epoch as well."""
    pairs = forebay.wrap(kind(tmp_path / "reads"), lambda index: index // 2, name="pairs")
    with pytest.raises(ValueError, match="have the same key"):
        in_order(our_loader(pairs, batch_size=4))
    with pytest.raises(ValueError, match="have the same key"):
        pairs.learn()
    assert claims_held(pairs) == 0


def test_items_with_one_key_that_two_processes_meet_at_once_are_not_mixed_up(
    tmp_path: Path,
) -> None:
    """Promise 1: who waits for another's item of the same key is not given it."""
    slow = Slow(tmp_path / "reads", seconds=0.5)
    dataset = forebay.wrap(slow, lambda index: 0, name="all alike")
    told = tmp_path / "told"

    def read(item: int) -> None:
        try:
            assert dataset[item] == CONTENTS[item]
        except ValueError as problem:
            with told.open("a") as file:
                file.write(f"{problem}\n")

    in_processes(2, read)
    assert told.read_text().count("have the same key 0") == 1
    assert claims_held(dataset) == 0


@pytest.mark.parametrize("key", [None, [1], {"a": 1}, object(), (1, [2]), np.arange(2)])
def test_what_is_no_key_is_named(slow: Slow, key: Any) -> None:
    dataset = forebay.wrap(slow, lambda index: key, name="bad keys")
    with pytest.raises(TypeError, match="does not tell what an item is: give a str, bytes, int"):
        dataset[0]
    assert slow.reads() == NEVER


def test_no_two_keys_are_hashed_alike() -> None:
    keys: list[Any] = ["1", b"1", 1, True, 1.0, (1,), ((1,),), (1, 1), ("1", 1), (1, "1"), ()]
    keys += ["", b"", 0, False, 0.0, -0.0, (None,), ("", ""), ("a", "b"), ("ab",), "\udc80", -1]
    keys += [10**30, "ab", ("a", ("b", "c")), (("a", "b"), "c"), ("a", "b", "c"), float("inf")]
    assert len({hashed(key) for key in keys}) == len(keys)
    assert hashed(np.int64(5)) == hashed(5)
    assert hashed(("x", 7)).hex().startswith("f17049f0d350db86"), "it is the same for ever"


def test_what_the_users_code_raises_is_the_users(tmp_path: Path, slow: Slow) -> None:
    class Broken(LookupError):
        pass

    def key(index: int) -> int:
        if index == 3:
            raise Broken("no such row")
        return index

    dataset = forebay.wrap(slow, key, name="broken key")
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
        assert claims_held(failing) == 0, "nobody has to wait for what was claimed"
    assert failing.__getitems__([1, 2]) == CONTENTS[1:3]

    class Short(Slow):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices[1:]]

    short = forebay.wrap(Short(tmp_path / "short"), name="short")
    with pytest.raises(ValueError, match="gave 2 of 3 items"):
        short.__getitems__([1, 2, 3])
    assert claims_held(short) == 0


class Stubborn:
    """Something that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("I stay here")


class Moody:
    """Something that cannot be unpickled, if the environment says so."""

    def __reduce__(self) -> Any:
        return _moody, ()


def _moody() -> Moody:
    if "FOREBAY_TEST_MOODY" in os.environ:
        raise RuntimeError("not today")
    return Moody()


def test_what_cannot_be_pickled_is_read_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(tmp_path / "reads", [b"plain", Stubborn()])
    dataset = forebay.wrap(slow, name="stubborn")
    with pytest.warns(RuntimeWarning, match=r"item 1 cannot be pickled.*I stay here"):
        assert isinstance(dataset[1], Stubborn)
    assert dataset[0] == b"plain"
    assert isinstance(dataset.__getitems__([0, 1])[1], Stubborn)
    assert slow.reads() == Counter([1, 1, 0])
    moody = forebay.wrap(Slow(tmp_path / "moody", [Moody()]), name="moody")
    assert isinstance(moody[0], Moody)
    assert isinstance(moody[0], Moody)
    monkeypatch.setenv("FOREBAY_TEST_MOODY", "1")
    with pytest.warns(RuntimeWarning, match=r"item 0 cannot be unpickled.*not today"):
        assert isinstance(moody[0], Moody)
    assert moody.dataset.reads() == Counter([0, 0])


def test_content_that_changes_under_its_key_is_given_and_counted(tmp_path: Path) -> None:
    """Promise 1: never wrong bytes."""
    slow = Slow(tmp_path / "reads", [b"old", b"as it was"])
    place = tmp_path / "node"
    with harness.node(place):
        dataset = forebay.wrap(slow, name="changing", cache=place / "node.sock")
        assert dataset.__getitems__([0, 1]) == [b"old", b"as it was"]
        slow.items = [b"new", b"as it was"]
        assert dataset[0] == b"old", "the same key says that it is the same"
    shutil.rmtree(place / "blobs")
    with harness.node(place):
        dataset = forebay.wrap(slow, name="changing", cache=place / "node.sock")
        for _ in range(2):
            assert dataset.__getitems__([0, 1]) == [b"new", b"as it was"]
        counted = dataset.stats()
        assert (counted["changed"], counted["first_sights"]) == (1, 0)
        assert (counted["read"], counted["hits"]) == (2, 2)
        assert claims_held(dataset) == 0


def test_what_is_never_pickled_alike_is_right_all_the_same(tmp_path: Path) -> None:
    class Wavering(Slow):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index), os.urandom(8)

    place, slow = tmp_path / "node", Wavering(tmp_path / "reads")
    for _ in range(3):
        with harness.node(place):
            dataset = forebay.wrap(slow, name="wavering", cache=place / "node.sock")
            found = [dataset.__getitems__(range(20)) for _ in range(2)]
            assert found[0] == found[1]
            assert [item for item, _ in found[0]] == CONTENTS[:20]
            assert slow.reads() == Counter(range(20))
        shutil.rmtree(place / "blobs")
    # One that finds what is known of it, but not the bytes, learns it anew.
    assert len(Catalogue(dataset._items.catalogue_path, None)) == 20


def test_without_a_cache_nothing_is_kept(slow: Slow) -> None:
    dataset = forebay.wrap(slow, name="none", cache=None)
    assert list(dataset) == list(dataset) == CONTENTS
    assert slow.reads() == ONCE + ONCE
    assert dataset.stats()["node"] is None
    with pytest.raises(forebay.ForebayError, match="nothing to learn without a cache"):
        dataset.learn()


def test_a_node_that_is_not_there_costs_hits_only(tmp_path: Path, slow: Slow) -> None:
    """Promise 5: no cache fault fails or hangs a job."""
    place = tmp_path / "named"
    with pytest.warns(RuntimeWarning, match="nobody answers there"):
        dataset = forebay.wrap(slow, name="absent", cache=place / "node.sock")
    assert list(dataset) == CONTENTS
    assert slow.reads() == ONCE
    assert dataset.stats()["fallbacks"] == ITEMS
    assert len(Catalogue(dataset._items.catalogue_path, None)) == 0, (
        "nor was anything pickled in vain"
    )
    with harness.node(place):
        time.sleep(1.1)  # a node that was missed is not tried again sooner
        assert list(dataset) == list(dataset) == CONTENTS
    assert slow.reads() == ONCE
    assert list(dataset) == CONTENTS, "and without it again"


@pytest.mark.parametrize("workers", [{}, FORK], ids=["alone", "fork"])
def test_a_node_that_is_killed_in_mid_epoch_costs_hits_only(
    tmp_path: Path, slow: Slow, workers: Any
) -> None:
    """Promise 5, and losing a node in mid-epoch costs no job an error."""
    place = tmp_path / "named"
    with harness.node(place) as node:
        dataset = forebay.wrap(slow, name="mid-epoch", cache=place / "node.sock")
        loader = forebay.DataLoader(dataset, 16, True, collate_fn=list, **workers)
        assert in_order(loader) == sorted(CONTENTS)
        slow.reads()
        items, began = list[bytes](), time.monotonic()
        for number, batch in enumerate(loader):
            items += batch
            if number == 3:
                node.kill()
        assert sorted(items) == sorted(CONTENTS)
        assert slow.reads() <= ONCE
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("found", [False, True])
def test_a_node_that_dies_is_started_again(slow: Slow, own_node: Path, found: bool) -> None:
    if found:
        ensure_node(own_node)
    dataset = forebay.wrap(slow, name="revived")
    first = dataset.__getitems__(range(50))
    pid = harness.listener(own_node)
    harness.kill(pid)
    assert dataset.__getitems__(range(50)) == first == CONTENTS[:50]
    assert harness.listener(own_node) != pid


def test_a_stopped_reader_is_waited_for_no_longer_than_its_lease(tmp_path: Path) -> None:
    """Promise 5: past a short deadline it reads the origin."""
    slow = Slow(tmp_path / "reads", CONTENTS[:3])
    place = tmp_path / "node"
    stuck = Slow(tmp_path / "stuck", CONTENTS[:3], seconds=600)
    with harness.node(place, "--lease", "500ms"):
        options: dict[str, Any] = {"name": "stuck", "cache": place / "node.sock"}
        child = multiprocessing.get_context("fork").Process(
            target=lambda: forebay.wrap(stuck, **options)[1]
        )
        child.start()
        harness.wait_until(lambda: stuck.log.read_text() != "")
        dataset = forebay.wrap(slow, **options)
        began = time.monotonic()
        assert dataset.__getitems__([0, 1, 2]) == CONTENTS[:3]
        assert time.monotonic() - began < 5
        assert slow.reads() == Counter(range(3))
        harness.kill(child.pid or 0)
        child.join()


def test_a_signal_ends_a_wait(tmp_path: Path) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: Any) -> None:
        raise Alarm

    stuck = Slow(tmp_path / "stuck", CONTENTS[:3], seconds=600)
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
    assert dataset[1] == CONTENTS[1], "a connection that was interrupted is made anew"


@pytest.mark.filterwarnings("ignore:DataLoader worker:RuntimeWarning")
def test_killed_workers_cost_no_more_than_what_they_had_in_hand(tmp_path: Path) -> None:
    slow = Slow(tmp_path / "reads", seconds=0.002)
    dataset = forebay.wrap(slow, name="killed")
    loader = forebay.DataLoader(dataset, 16, True, collate_fn=list, **FORK)
    items = list[bytes]()
    for number, batch in enumerate(loader):
        items += batch
        if number in (2, 6):
            for worker in multiprocessing.active_children()[:1]:
                harness.kill(worker.pid or 0)
    assert sorted(items) == sorted(CONTENTS)
    assert loader.stats()["workers_restarted"] >= 1
    reads = slow.reads()
    assert set(reads) == set(range(ITEMS))
    assert sum(reads.values()) <= ITEMS + 2 * 2, "one that each was reading, and a moment after"
    assert in_order(loader) == sorted(CONTENTS)
    assert slow.reads() == NEVER


def test_jobs_that_are_killed_at_any_moment_leave_nothing_wrong(tmp_path: Path) -> None:
    slow = Slow(tmp_path / "reads")
    context = multiprocessing.get_context("fork")
    forebay.wrap(slow, name="killed jobs")[0]

    def job() -> None:
        list(forebay.wrap(slow, name="killed jobs"))

    for round_ in range(8):
        process = context.Process(target=job)
        process.start()
        time.sleep(0.01 * (round_ + 1))
        harness.kill(process.pid or 0)
        process.join()
    dataset = forebay.wrap(slow, name="killed jobs")
    assert list(dataset) == list(dataset) == CONTENTS
    reads = slow.reads()
    assert set(reads) == set(range(ITEMS))
    assert sum(reads.values()) <= ITEMS + 2 * 8
    assert dataset.stats()["changed"] == 0


def test_threads_have_connections_of_their_own(slow: Slow) -> None:
    dataset = forebay.wrap(slow, name="threads")
    found: list[Any] = []

    def read() -> None:
        found.append(dataset.__getitems__(range(100)))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENTS[:100]] * 4
    assert slow.reads() == Counter(range(100))
    counted = dataset.stats()
    assert counted["items"] == counted["hits"] + counted["read"] == 400


def test_a_cache_that_is_too_small_is_never_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [bytes([number]) * 200_000 for number in range(120)]
    slow = Slow(tmp_path / "reads", large)
    monkeypatch.setenv("FOREBAY_CAPACITY", "10MB")
    dataset = forebay.wrap(slow, name="small")
    loader = our_loader(dataset, batch_size=8, shuffle=True)
    for _ in range(3):
        assert in_order(loader) == large
        reads = slow.reads()
        assert set(reads.values()) == {1}
    assert dataset.stats()["hits"] > 0
    assert dataset.stats()["changed"] == 0


def test_only_the_user_can_say_what_items_are(slow: Slow) -> None:
    dataset = forebay.wrap(slow, name="private/../../etc")
    assert dataset[0] == CONTENTS[0]
    path = dataset._items.catalogue_path
    assert path.parent.name == "catalogues"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    with pytest.raises(forebay.ForebayError, match="chmod 600"):
        forebay.wrap(slow, name="private/../../etc")


def test_a_private_namespace_is_another_world(tmp_path: Path, slow: Slow) -> None:
    key, place = tmp_path / "team.key", tmp_path / "node"
    subprocess.run([binary(), "namespace", "new", str(key)], check=True, capture_output=True)
    with harness.node(place, "--namespace-key", str(key)):
        public = forebay.wrap(slow, name="shared", cache=place / "node.sock")
        team = forebay.wrap(slow, name="shared", cache=place / "node.sock", namespace_key=key)
        for dataset in (public, team, public, team):
            assert dataset.__getitems__(range(20)) == CONTENTS[:20]
        assert slow.reads() == Counter(list(range(20)) * 2)
        hidden = Picks(place / "node.sock", None, None, "curious")
        picks = [one.pick for one in team._items.want(range(20))]
        assert team._items.picks.get(picks) == CONTENTS[:20]
        assert hidden.get(picks) == [None] * 20


def test_several_nodes_share_what_is_wrapped(tmp_path: Path, slow: Slow) -> None:
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
        dataset = forebay.wrap(slow, name="ring", cache=sockets[1])
        assert list(dataset) == list(dataset) == CONTENTS
        assert slow.reads() == ONCE
        assert dataset.stats()["node"]["puts"] == ITEMS, "of both together"
        node.kill()
        node.wait()
        assert list(dataset) == CONTENTS
        reads = slow.reads()
        assert 0 < sum(reads.values()) < ITEMS, "what the other owns is still there"


def test_substitution_begins_when_all_items_are_known(slow: Slow) -> None:
    dataset = forebay.wrap(slow, name="substitute")
    dataset.__getitems__(range(3))
    with pytest.raises(forebay.ForebayError, match=r"200 of 203 items have never.*call learn\(\)"):
        forebay.DataLoader(dataset, 16, True, order="substitute")
    dataset.learn()
    assert slow.reads() == ONCE
    dataset.learn()
    assert slow.reads() == NEVER
    loader = forebay.DataLoader(dataset, 16, True, order="substitute", collate_fn=list)
    epochs = [[item for batch in loader for item in batch] for _ in range(3)]
    for items in epochs:
        assert sorted(items) == sorted(CONTENTS)
    assert epochs[0] != epochs[1]
    assert sum(slow.reads().values()) == dataset.stats()["read"] - ITEMS
    counted = loader.stats()
    assert counted["reports"] > 0
    assert counted["held_share"] == 1.0
    assert counted["mixing"]["neighbours"] > 0.5


def test_substitution_with_workers(slow: Slow) -> None:
    dataset = forebay.wrap(slow, name="substitute with workers")
    dataset.learn()
    assert slow.reads() == ONCE
    loader = forebay.DataLoader(dataset, 16, True, order="substitute", collate_fn=list, **FORK)
    for _ in range(2):
        assert in_order(loader) == sorted(CONTENTS)
    assert sum(slow.reads().values()) <= loader.stats()["probes"] * 16


def test_copies_do_not_fence_each_other(slow: Slow) -> None:
    dataset = forebay.wrap(slow, name="copies")
    dataset.learn()
    loaders = [
        forebay.DataLoader(one, 16, True, order="substitute", collate_fn=list)
        for one in (dataset, copy.deepcopy(dataset))
    ]
    for _ in range(2):
        for loader in loaders:
            assert Counter(item for batch in loader for item in batch) == Counter(CONTENTS)


def test_substitution_keeps_to_what_the_node_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no place is read by each for itself, and does not drive out what has one."""
    large = [bytes([number]) * 100_000 for number in range(200)]
    slow = Slow(tmp_path / "reads", large)
    monkeypatch.setenv("FOREBAY_CAPACITY", "12MB")
    dataset = forebay.wrap(slow, name="rotation")
    dataset.learn()
    slow.reads()
    loader = forebay.DataLoader(dataset, 8, True, order="substitute", collate_fn=list)
    for _ in range(3):
        assert in_order(loader) == large
    counted = dataset.stats()
    assert counted["outside"] > 0
    assert counted["fallbacks"] == 0
    slow.reads()
    assert in_order(loader) == large
    reads = slow.reads()
    assert set(reads.values()) == {1}
    assert sum(reads.values()) < 160, "some are held"


def test_a_checkpoint_goes_on_where_it_was(slow: Slow) -> None:
    def make(**options: Any) -> forebay.DataLoader:
        dataset = forebay.wrap(slow, name="checkpoint")
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
    other = forebay.DataLoader(forebay.wrap(slow, name="other"), 16, True, collate_fn=list)
    with pytest.raises(forebay.StateError, match="wrapped checkpoint of 203 items"):
        other.load_state_dict(loader.state_dict())


def test_the_order_is_pytorchs_own_unless_another_is_asked_for(slow: Slow) -> None:
    dataset = forebay.wrap(slow, name="order")
    orders = []
    for make in (torch_loader, our_loader):
        torch.manual_seed(11)
        orders.append([list(make(dataset, batch_size=5, shuffle=True)), torch.rand(3).tolist()])
    assert orders[0] == orders[1]
    with pytest.raises(ValueError, match="a wrapped dataset's errors are its own"):
        forebay.DataLoader(dataset, on_error="skip")
    loader = forebay.DataLoader(dataset, 5, collate_fn=list)
    next(iter(loader))
    counted = loader.stats()
    assert (counted["items"], counted["skipped"]["count"], counted["mixing"]) == (5, 0, None)
    assert counted["hit_share"] == pytest.approx(208 / 411)


def test_counts_outlive_those_who_counted(tmp_path: Path) -> None:
    tally = Tally(["a", "b"])
    tally.add(a=1, b=2)
    in_processes(3, lambda number: tally.add(a=10, b=number))
    thread = threading.Thread(target=tally.add, kwargs={"a": 100})
    thread.start()
    thread.join()
    assert tally.totals() == {"a": 131, "b": 5}
    same = pickle.loads(pickle.dumps(tally))
    same.add(b=1)
    assert tally.totals() == same.totals() == {"a": 131, "b": 6}
    # Nothing is left of one that was pickled for later.
    again = pickle.loads(pickle.dumps(Tally(["a", "b"])))
    again.add(b=1)
    assert again.totals() == {"a": 0, "b": 1}
