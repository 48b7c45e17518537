"""The life of streams from Python: full stores, failed appends, lifetimes, nodes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest
from stream_support import CAPACITY, DEADLINE, Table, is_all_back, random_array, same, wait_for

from forebay import stream
from forebay.stream import Reader, Store, StoreFull, StreamError


def test_a_stream_is_consumed_while_it_is_read(store: Store) -> None:
    with store.create("once") as writer:
        for _ in range(8):
            writer.append(bytes(4_000_000))
    assert sum(len(block) for block in store.open("once", consume=True).bytes()) == 32_000_000
    assert list(store.list()) == []
    wait_for(
        "space is back", lambda: store.facts()["free_bytes"] == store.facts()["capacity_bytes"]
    )


def test_a_follower_reads_what_is_written_after_it_opened(store: Store) -> None:
    writer = store.create("live")
    reader = store.open("live", follow=True)
    read: list[bytes] = []
    thread = threading.Thread(target=lambda: read.extend(bytes(one) for one in reader.bytes()))
    thread.start()
    for number in range(20):
        writer.append(bytes([number]))
    writer.seal()
    thread.join(DEADLINE)
    assert read == [bytes([number]) for number in range(20)]


def test_lifetimes_decide_what_the_next_owner_finds(tmp_path: Path) -> None:
    with Store(tmp_path, CAPACITY) as store:
        lifetimes: dict[str, Any] = {
            "kept": "kept",
            "spill": "process",
            "hour": timedelta(hours=1),
            "ended": 0.0,
        }
        for name, lifetime in lifetimes.items():
            with store.create(name, lifetime=lifetime) as writer:
                writer.append(np.arange(5))
        family = store.family("query", lifetime=60)
        with family.create("leased") as writer:
            writer.append(b"1")
        with family.create("destroyed") as writer:
            writer.append(b"2")
        store.destroy("destroyed")
        infos = {info.name: info for info in store.list()}
        assert infos["hour"].lifetime == 3600.0
        assert infos["kept"].lifetime == "kept"
        assert infos["leased"].family == "query"
        assert infos["spill"].state == "sealed"
    del store, writer, family
    gc.collect()
    with Store(tmp_path) as store:
        assert [info.name for info in store.list()] == ["hour", "kept", "leased"]
        (array,) = store.open("kept").arrays()
        assert array.tolist() == [0, 1, 2, 3, 4]


def test_an_exception_drops_the_stream(store: Store) -> None:
    half = store.create("half")

    def fail() -> None:
        with half:
            half.append(b"1")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(store.list()) == []
    with pytest.raises(StreamError, match="sealed or abandoned"):
        half.append(b"2")
    writer = store.create("dropped")
    writer.append(b"1")
    del writer
    wait_for(
        "space is back", lambda: store.facts()["free_bytes"] == store.facts()["capacity_bytes"]
    )
    assert list(store.list()) == []


def test_an_abandoned_generator_returns_its_memory(store: Store) -> None:
    with store.create("arrays") as writer:
        for number in range(30):
            writer.append(np.full(100_000, number))
    for use in (Reader.arrays, Reader.bytes):
        generator = use(store.open("arrays"))
        next(generator)
        del generator
    for array in store.open("arrays").arrays():
        assert array[0] == 0
        break
    del array
    gc.collect()
    wait_for("memory is back", lambda: is_all_back(store))
    store.destroy("arrays", timeout=0)
    wait_for(
        "space is back", lambda: store.facts()["free_bytes"] == store.facts()["capacity_bytes"]
    )


def append_often(writer: stream.Writer, block: bytes) -> None:
    for _ in range(30):
        writer.append(block)


def test_a_full_store_is_an_error_or_a_wait(store: Store) -> None:
    block = bytes(4_000_000)
    writer = store.create("full")
    with pytest.raises(StoreFull, match=r"the store is full .* destroy streams"):
        append_often(writer, block)
    writer.abandon()
    with store.create("first") as first:
        for _ in range(10):
            first.append(block)
    second = store.create("second", full="wait")

    def fill() -> None:
        for _ in range(10):
            second.append(block)
        second.seal()

    thread = threading.Thread(target=fill)
    thread.start()
    assert sum(1 for _ in store.open("first", consume=True).bytes()) == 10
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert sum(1 for _ in store.open("second").bytes()) == 10


def contents(length: int) -> dict[str, tuple[Any, Callable[[Reader], list[int]]]]:
    """Data of about this length for every kind of stream, and how its values are read back."""
    numbers = np.arange(length // 8)
    return {
        "arrays": (numbers, lambda reader: [n for a in reader.arrays() for n in a.tolist()]),
        "bytes": (
            numbers.tobytes(),
            lambda reader: np.frombuffer(b"".join(reader.bytes()), np.int64).tolist(),
        ),
        "tables": (
            Table(len(numbers)),
            lambda reader: [n for b in reader for n in b["x"].tolist()],
        ),
    }


@pytest.mark.parametrize("kind", ["arrays", "bytes", "tables"])
def test_an_append_that_fails_half_way_is_never_sealed(store: Store, kind: str) -> None:
    data, values = contents(40_000_000)[kind]
    with store.create("filler") as filler:
        filler.append(bytes(40_000_000))
    writer = store.create("rows")
    with pytest.raises(StoreFull):
        writer.append(data)
    store.destroy("filler")
    for call in (lambda: writer.append(data), writer.seal):
        with pytest.raises(StreamError, match=r"failed half-way.* write it again"):
            call()
    assert list(store.list()) == []
    with store.create("rows") as writer:
        writer.append(data)
    assert values(store.open("rows")) == list(range(5_000_000))


@pytest.mark.parametrize("kind", ["arrays", "bytes", "tables"])
def test_an_append_that_fails_before_its_first_block_can_be_repeated(
    store: Store, kind: str
) -> None:
    data, values = contents(8000)[kind]
    filler = store.create("filler")
    with pytest.raises(StoreFull):
        append_often(filler, bytes(filler._native.block_length))
    filler.seal()
    writer = store.create("rows")
    for _ in range(2):
        with pytest.raises(StoreFull):
            writer.append(data)
    store.destroy("filler")
    writer.append(data)
    writer.append(data)
    writer.seal()
    assert values(store.open("rows")) == [*range(1000), *range(1000)]


def test_a_seal_between_two_blocks_of_an_append_drops_the_stream(store: Store) -> None:
    """Ctrl-C can end an append between two of its blocks; appending again would duplicate one."""
    writer = store.create("bytes")
    writer._native.append_block([np.zeros(1, np.uint8)], True, False)
    writer.append(b"again")
    with pytest.raises(StreamError, match="failed half-way"):
        writer.seal()
    assert list(store.list()) == []


def test_a_destroy_waits_for_its_readers(store: Store) -> None:
    with store.create("s") as writer:
        for _ in range(20):
            writer.append(bytes(300_000))
    reader = store.open("s", depth=1).bytes()
    first = next(reader)
    store.destroy("s", timeout=0)
    assert bytes(first) == bytes(300_000)
    with pytest.raises(StreamError, match="was destroyed while it was read"):
        next(reader)


def test_streams_on_a_node_are_those_of_a_store(tmp_path: Path) -> None:
    (tmp_path / "forebay.toml").write_text('capacity = "64MB"\nstreams = "64MiB"\n')
    options = ["--config", str(tmp_path / "forebay.toml")]
    with harness.node(tmp_path / "node", *options):
        store = Store(tmp_path / "node" / "node.sock")
        assert not store.is_owner
        long = random_array("<f8", (1_500_000,))
        with store.create("arrays", lifetime="kept") as writer:
            writer.append(long)
        parts = list(store.open("arrays").arrays())
        assert len(parts) > 1
        assert same(np.concatenate(parts), long)
        with store.create("bytes") as writer:
            writer.append(b"spilled")
        with store.open("bytes") as reader:
            assert b"".join(reader.bytes()) == b"spilled"
        # A stream with a table comes back as a table.
        with store.create("table") as writer:
            writer.append(Table(1000))
        batches = list(store.open("table", consume=True))
        assert np.concatenate([batch["x"] for batch in batches]).tolist() == list(range(1000))
        assert [info.name for info in store.list()] == ["arrays", "bytes"]
        assert store.facts()["capacity_bytes"] == 64 << 20

        def write_half() -> None:
            with store.create("dropped") as writer:
                writer.append(b"half")
                raise RuntimeError("stop")

        def overfill() -> None:
            with store.create("full") as writer:
                for _ in range(20):
                    writer.append(bytes(4_000_000))

        with pytest.raises(RuntimeError, match="stop"):
            write_half()
        with pytest.raises(StoreFull, match="budget of 64 MiB"):
            overfill()
        store.destroy("arrays")
        with pytest.raises(StreamError, match='no stream "arrays"'):
            store.open("arrays")
        for refused in (
            lambda: store.family("f"),
            lambda: store.create("w", full="wait"),
            lambda: store.open("bytes", follow=True),
        ):
            with pytest.raises(StreamError, match="a node has no"):
                refused()
        assert [info.name for info in store.list()] == ["bytes"]
    with pytest.raises(ValueError, match="capacity is for directories"):
        Store("tcp://localhost:1", "1GB")


def test_a_reader_that_failed_fails_again(store: Store) -> None:
    with store.create("bytes") as writer:
        writer.append(b"1")
    reader = store.open("bytes")
    for _ in range(2):
        with pytest.raises(StreamError, match="is not Arrow"):
            next(reader)
    mixed = store.create("mixed")
    mixed.append(Table(1))
    reader = store.open("mixed", follow=True)
    assert len(next(reader)) == 1
    mixed.abandon()
    for _ in range(2):
        with pytest.raises(StreamError, match="dropped by its writer"):
            next(reader)


def test_the_last_block_of_a_loop_keeps_one_slot_and_not_all_of_its_reader(store: Store) -> None:
    with store.create("s") as writer:
        for number in range(12):
            writer.append(np.full(400_000, number))
    for array in store.open("s", depth=8).arrays():
        assert array[0] == array[-1]
    # The loop variable still holds a block.
    assert array[0] == 11
    again = [int(other[0]) for other in store.open("s", depth=8).arrays()]
    assert again == list(range(12))
    assert store.facts()["outside_slots_bytes"] == 0
