"""Streams from Python: tables, arrays and bytes, without a copy; nothing is left behind."""

from __future__ import annotations

import ctypes
import gc
import inspect
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pytest

import forebay
from forebay import stream
from forebay.stream import Reader, Store, StoreFull, StreamError

#: Generous: the machines of CI are slow.
DEADLINE = 60.0
CAPACITY = "65MiB"

DTYPES = ["?", "i1", "<u2", ">i4", "<i8", "<f2", "<f4", ">f8", "<c16", "S5", "<U3", "V7"]
DTYPES += ["<M8[ns]", "<m8[D]"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", CAPACITY) as store:
        yield store


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def random_array(dtype: Any, shape: tuple[int, ...], seed: int = 1) -> np.ndarray[Any, Any]:
    dtype = np.dtype(dtype)
    count = int(np.prod(shape)) * dtype.itemsize
    values = np.random.default_rng(seed).integers(0, 2, count, np.uint8)
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, values.tobytes() or b"0")
    return array


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def is_view(store: Store, array: np.ndarray[Any, Any]) -> bool:
    """Whether the first value lies in the store's memory for reading."""
    first, end = store._native.read_memory()
    return bool(first <= array.__array_interface__["data"][0] < end)


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_dtype_and_shape_come_back_equal(store: Store, dtype: str) -> None:
    shapes: list[tuple[int, ...]] = [(), (0,), (1,), (7,), (3, 0, 2), (5, 4), (2, 3, 4)]
    arrays = [random_array(dtype, shape, seed) for seed, shape in enumerate(shapes)]
    arrays.append(random_array(dtype, (6, 8))[::2, ::-1])
    arrays.append(np.asfortranarray(random_array(dtype, (6, 8))))
    with store.create("arrays") as writer:
        for array in arrays:
            writer.append(array)
    found = list(store.open("arrays").arrays())
    assert len(found) == len(arrays)
    for array, back in zip(arrays, found, strict=True):
        assert same(array, back)
        with pytest.raises(ValueError, match="cannot set"):
            back.setflags(write=True)


def test_structured_arrays_keep_their_fields(store: Store) -> None:
    plain = np.dtype([("name", "S4"), ("at", "<f8", (2,))])
    aligned = np.dtype([("flag", "?"), ("count", "<i8")], align=True)
    for name, dtype in (("plain", plain), ("aligned", aligned)):
        array = random_array(dtype, (50,))
        with store.create(name) as writer:
            writer.append(array)
        (back,) = store.open(name).arrays()
        assert same(array, back)


def test_arrays_of_many_fields_and_of_any_field_name_come_back_equal(store: Store) -> None:
    names = np.dtype([("é", "<f4"), ("日本", "<i2"), ("quote'\\", "u1")])
    many = np.dtype([(f"f{number}", "<f4") for number in range(400)])
    for name, dtype in (("names", names), ("many", many)):
        array = random_array(dtype, (50,))
        with store.create(name) as writer:
            writer.append(array)
        (back,) = store.open(name, depth=1).arrays()
        assert same(array, back)
        assert back.dtype.names == dtype.names
        (block,) = store.open(name, depth=1).bytes()
        assert same(array, np.load(io.BytesIO(block))), "a block is a .npy file"


def test_blocks_with_a_bad_header_are_an_error(store: Store) -> None:
    one = {"descr": "<u1", "fortran_order": False, "shape": (1,)}
    headers: list[object] = ["", "{", "[1]", "{}", "x", "(" * 5000, "9" * 5000]
    headers += [{**one, "descr": bad} for bad in ("nothing", None, 5, ("u1",), [("a",)], "|O")]
    headers += [{**one, "shape": bad} for bad in (None, (2,), (-1,), (1.0,), ("1",), "1", 1)]
    headers += [{**one, "fortran_order": True}]
    for number, header in enumerate(headers):
        text = str(header).encode()
        with store.create(f"{number}") as writer:
            block = b"\x93NUMPY\x03\x00" + len(text).to_bytes(4, "little") + text + b"1"
            writer.append(block)
        with (
            store.open(f"{number}") as reader,
            pytest.raises(StreamError, match="no array that can be read") as refused,
        ):
            next(reader.arrays())
        assert "\n" not in str(refused.value)
        store.destroy(f"{number}")


def test_long_arrays_are_split_by_rows(store: Store) -> None:
    array = np.arange(3_000_000.0).reshape(-1, 3)
    with store.create("long") as writer:
        writer.append(array)
    parts = list(store.open("long", depth=8).arrays())
    assert len(parts) > 5
    assert same(np.concatenate(parts), array)


def test_what_is_read_lies_in_the_memory_of_the_store(store: Store) -> None:
    """0 bytes are copied between the device and the consumer."""
    with store.create("arrays") as writer:
        for number in range(20):
            writer.append(np.full(100_000, number))
    seen = 0
    for number, array in enumerate(store.open("arrays").arrays()):
        assert is_view(store, array)
        assert array.ctypes.data % 64 == 0
        assert (array == number).all()
        seen += 1
    assert seen == 20
    for block in store.open("arrays").bytes():
        assert is_view(store, np.asarray(block))
    assert store.facts()["outside_slots_bytes"] == 0


def test_what_is_held_stays_valid_and_returns_its_memory(store: Store) -> None:
    with store.create("arrays") as writer:
        for number in range(10):
            writer.append(np.full(1000, number))
    held = list(store.open("arrays", depth=3).arrays())
    assert sum(is_view(store, array) for array in held) == 3
    assert store.facts()["outside_slots_bytes"] > 0
    for number, array in enumerate(held):
        assert (array == number).all()
    facts = store.facts()
    assert facts["read_memory_free_bytes"] < facts["read_memory_bytes"]
    del held, array
    gc.collect()
    wait_for("memory is back", lambda: is_all_back(store))


def is_all_back(store: Store) -> bool:
    facts = store.facts()
    return facts["read_memory_free_bytes"] == facts["read_memory_bytes"]


def test_anything_with_the_buffer_protocol_is_bytes(store: Store) -> None:
    import array

    long = np.random.default_rng(1).bytes(9_000_000)
    contents: list[Any] = [b"bytes", bytearray(b"array"), memoryview(b"view")[1:3], b"", long]
    contents += [array.array("d", [1.0, 2.0]), (ctypes.c_int * 3)(1, 2, 3)]
    with store.create("bytes") as writer:
        for content in contents:
            writer.append(content)
    expected = b"".join(bytes(content) for content in contents)
    blocks = [bytes(block) for block in store.open("bytes").bytes()]
    assert len(blocks) > len(contents)
    assert b"".join(blocks) == expected


def test_batches_are_arrays_without_pyarrow(store: Store) -> None:
    """A reader is an Arrow producer and a writer a consumer, so one stream copies another."""
    with store.create("table") as writer:
        writer.append(Table(4))
    with store.create("copy") as writer:
        writer.append(store.open("table"))
        for batch in store.open("table"):
            writer.append(batch)
    seen = 0
    for batch in store.open("copy"):
        numbers = batch["x"]
        assert numbers.tolist() == [0, 1, 2, 3]
        assert batch.column_names == ["x"]
        assert len(batch) == batch.num_rows == 4
        assert is_view(store, numbers)
        with pytest.raises(KeyError, match='no column "y"'):
            batch["y"]
        seen += 1
    assert seen == 2


class Table:
    """An Arrow producer that is written by hand: one column ``x`` of int64."""

    def __init__(self, rows: int, *, is_nullable: bool = True) -> None:
        self.values = (ctypes.c_int64 * rows)(*range(rows))
        self.flags = 2 if is_nullable else 0
        self.keep: list[Any] = []

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        pointer, release = ctypes.c_void_p, ctypes.CFUNCTYPE(None, ctypes.c_void_p)

        class Schema(ctypes.Structure):
            pass

        class Array(ctypes.Structure):
            pass

        Schema._fields_ = [
            ("format", ctypes.c_char_p),
            ("name", ctypes.c_char_p),
            ("metadata", pointer),
            ("flags", ctypes.c_int64),
            ("n_children", ctypes.c_int64),
            ("children", ctypes.POINTER(ctypes.POINTER(Schema))),
            ("dictionary", pointer),
            ("release", release),
            ("private_data", pointer),
        ]
        Array._fields_ = [
            ("length", ctypes.c_int64),
            ("null_count", ctypes.c_int64),
            ("offset", ctypes.c_int64),
            ("n_buffers", ctypes.c_int64),
            ("n_children", ctypes.c_int64),
            ("buffers", ctypes.POINTER(pointer)),
            ("children", ctypes.POINTER(ctypes.POINTER(Array))),
            ("dictionary", pointer),
            ("release", release),
            ("private_data", pointer),
        ]

        def on_release(address: int) -> None:
            # A released structure has no release function.
            for kind in (Schema, Array):
                for kept in self.keep:
                    if isinstance(kept, kind) and ctypes.addressof(kept) == address:
                        kept.release = release()

        done = release(on_release)
        column = Schema(b"l", b"x", None, self.flags, 0, None, None, done, None)
        columns = (ctypes.POINTER(Schema) * 1)(ctypes.pointer(column))
        schema = Schema(b"+s", b"", None, 0, 1, columns, None, done, None)
        buffers = (pointer * 2)(None, ctypes.addressof(self.values))
        rows = len(self.values)
        values = Array(rows, 0, 0, 2, 0, buffers, None, None, done, None)
        children = (ctypes.POINTER(Array) * 1)(ctypes.pointer(values))
        nothing = (pointer * 1)(None)
        array = Array(rows, 0, 0, 1, 1, nothing, children, None, done, None)
        self.keep += [done, column, columns, schema, buffers, values, children, nothing, array]
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [pointer, ctypes.c_char_p, pointer]
        return (
            new(ctypes.addressof(schema), b"arrow_schema", None),
            new(ctypes.addressof(array), b"arrow_array", None),
        )


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


def refusals(store: Store) -> list[tuple[type[Exception], str, Callable[[], object]]]:
    """Bad input: the exception, part of its text, and the call."""
    arrays = store.create("arrays")
    arrays.append(np.zeros(3))
    sealed = store.create("sealed")
    sealed.append(b"bytes")
    sealed.seal()
    masked: Any = np.ma.masked_array([1, 2], [True, False])
    no_text: Any = None
    text: Any = "4"
    tables = store.create("tables")
    tables.append(Table(1))
    wide = np.dtype([(f"field{number}", "f4") for number in range(1000)])
    overlapping = np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [0, 0]})
    return [
        (
            StreamError,
            "has (x: Int64 not null)",
            lambda: tables.append(Table(1, is_nullable=False)),
        ),
        (TypeError, "use fewer fields", lambda: store.create("x").append(np.zeros(3, wide))),
        (TypeError, "fields in order", lambda: store.create("x").append(np.zeros(3, overlapping))),
        (TypeError, "depth is '4'; use a whole", lambda: store.open("sealed", depth=text)),
        (TypeError, "in_flight is '4'; use", lambda: store.open("sealed", in_flight=text)),
        (ValueError, "use 1 to 4294967295", lambda: store.open("sealed", depth=1 << 32)),
        (ValueError, "up to 1e19", lambda: store.create("x", lifetime=float("inf"))),
        (ValueError, "up to 1e19", lambda: store.destroy("sealed", timeout=float("nan"))),
        (StreamError, "the name is empty", lambda: store.create("")),
        (StreamError, "the name has 129 bytes", lambda: store.create("x" * 129)),
        (StreamError, "control character", lambda: store.create("a\nb")),
        (ValueError, "not UTF-8", lambda: store.create("\ud800")),
        (TypeError, "use a string", lambda: store.create(5)),  # type: ignore[arg-type]
        (StreamError, "exists: destroy it first", lambda: store.create("sealed")),
        (StreamError, "is being written: seal it first", lambda: store.open("arrays")),
        (StreamError, "no stream", lambda: store.open("missing")),
        (StreamError, "no stream", lambda: store.destroy("missing")),
        (StreamError, "sealed or abandoned", lambda: sealed.append(b"more")),
        (StreamError, "sealed or abandoned", sealed.seal),
        (StreamError, "use one dtype per stream", lambda: arrays.append(np.zeros(3, "f4"))),
        (StreamError, "has arrays: write bytes", lambda: arrays.append(b"bytes")),
        (StreamError, "has arrays: write tables", lambda: arrays.append(Table(1))),
        (TypeError, "Python objects", lambda: arrays.append(np.array([None]))),
        (TypeError, "masked", lambda: arrays.append(masked)),
        (TypeError, "cannot append 'list'", lambda: arrays.append([1.0])),
        (TypeError, "not contiguous", lambda: arrays.append(memoryview(b"abcd")[::2])),
        (StreamError, "into shorter rows", lambda: arrays.append(np.zeros((1, 10**6)))),
        (StreamError, "is not Arrow: read it as", lambda: next(store.open("sealed"))),
        (StreamError, "is not an array", lambda: next(store.open("sealed").arrays())),
        (ValueError, "depth is 0", lambda: store.open("sealed", depth=0)),
        (StreamError, "use a smaller `depth`", lambda: store.open("sealed", depth=99)),
        (ValueError, "when_held is", lambda: store.open("sealed", when_held="no")),
        (ValueError, "full is", lambda: store.create("x", full="no")),
        (ValueError, "lifetime is", lambda: store.create("x", lifetime="no")),
        (ValueError, "use 0 or more", lambda: store.create("x", lifetime=-1.0)),
        (TypeError, "lifetime is", lambda: store.create("x", lifetime=no_text)),
    ]


def test_bad_input_is_refused_in_one_line_with_a_remedy(store: Store) -> None:
    for kind, text, call in refusals(store):
        with pytest.raises(kind) as refused:
            raise AssertionError(f"{text}: {call()}")
        message = str(refused.value)
        assert text in message
        assert "\n" not in message
    assert [info.name for info in store.list()] == ["sealed"], "nothing else is left"
    assert [bytes(block) for block in store.open("sealed").bytes()] == [b"bytes"]


def test_stores_that_cannot_be_opened_say_why(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "store.flash").write_bytes(bytes(range(256)) * 65536)
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (StreamError, "there is no store in", lambda: Store(tmp_path / "none")),
        (ValueError, "the directory is empty", lambda: Store("", CAPACITY)),
        (StreamError, "cannot create the store's directory", lambda: Store(file, CAPACITY)),
        (StreamError, "is too small", lambda: Store(tmp_path / "a", "1MB")),
        (StreamError, "is too small for blocks", lambda: Store(tmp_path / "b", CAPACITY, memory=1)),
        (StreamError, "not forebay's", lambda: Store(foreign, CAPACITY)),
        (StreamError, "are free for", lambda: Store(tmp_path / "c", "900TB")),
        (ValueError, "64k", lambda: Store(tmp_path / "d", "64k")),
        (TypeError, "capacity is 1.5", lambda: Store(tmp_path / "e", 1.5)),  # type: ignore[arg-type]
    ]
    for kind, text, call in cases:
        with pytest.raises(kind) as refused:
            call()
        assert text in str(refused.value)
        assert "\n" not in str(refused.value)
    store = Store(tmp_path / "closed", CAPACITY)
    store.close()
    with pytest.raises(StreamError, match="closed: open it again"):
        store.list()


def forked(run: Callable[[], bool]) -> bool:
    """Whether ``run`` returns True in a forked child that then exits as Python does."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, b"right" if run() else b"wrong")
            gc.collect()
            sys.exit(0)
        except SystemExit:
            os._exit(0)
        except BaseException as error:
            os.write(write, repr(error).encode())
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        result = pipe.read()
    _, status = os.waitpid(child, 0)
    assert result in (b"right", b"wrong"), result
    return result == b"right" and status == 0


def test_a_forked_child_keeps_blocks_and_drops_nothing_of_its_parent(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", CAPACITY)
    with store.create("arrays") as writer:
        for number in range(12):
            writer.append(np.full(100_000, number))
    kept: dict[str, Any] = {
        "store": store,
        "reader": store.open("arrays"),
        "writer": store.create("open"),
    }
    arrays = kept["reader"].arrays()
    held = [next(arrays), next(arrays)]

    def in_child() -> bool:
        right = (held[1] == 1).all()
        calls: list[Callable[[], object]] = [
            lambda: next(kept["reader"].bytes()),
            lambda: kept["writer"].append(b"x"),
            lambda: kept["writer"].seal(),
        ]
        for call in calls:
            with pytest.raises(StreamError, match="in the child"):
                call()
        # Everything is dropped: without a thread that could answer.
        kept.clear()
        held.clear()
        return bool(right)

    assert forked(in_child)
    assert [int(array[0]) for array in [*held, *arrays]] == list(range(12))
    kept["writer"].append(b"still open")
    kept["writer"].seal()
    assert len(store.list()) == 2


def test_a_forked_child_borrows_from_its_parent(store: Store) -> None:
    with store.create("arrays") as writer:
        for number in range(12):
            writer.append(np.full(100_000, number))

    def in_child() -> bool:
        assert not store.is_owner
        assert [info.name for info in store.list()] == ["arrays"]
        with pytest.raises(StreamError, match="belongs to another process"):
            store.create("x")
        numbers = []
        for array in store.open("arrays").arrays():
            assert is_view(store, array)
            numbers.append(int(array[-1]))
        # A child of the child.
        again = forked(lambda: len(list(store.open("arrays").bytes())) == 12)
        return again and numbers == list(range(12))

    assert store.is_owner
    assert forked(in_child)
    wait_for("the leases have ended", lambda: store.list()[0].readers == 0)
    assert len(list(store.open("arrays").arrays())) == 12


FORKING_OWNER = """
import os, sys, time
import numpy as np
from forebay.stream import Store
store = Store(sys.argv[1], "65MiB")
with store.create("kept", lifetime="kept") as writer:
    writer.append(np.arange(3))
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
sys.stdin.readline()
"""


def test_a_forked_child_keeps_no_store_from_the_next_owner(tmp_path: Path) -> None:
    """Neither the lock of the device nor the socket stays with the child of a killed owner."""
    path = tmp_path / "store"
    command = [sys.executable, "-c", FORKING_OWNER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        owner.kill()
        owner.wait(DEADLINE)
        try:
            os.kill(child, 0)  # it lives
            store = Store(path)
        finally:
            os.kill(child, signal.SIGKILL)
    assert store.is_owner
    assert [info.name for info in store.list()] == ["kept"]
    store.close()


BORROWER = """
import sys
import numpy as np
from forebay.stream import Store, StreamError
store = Store(sys.argv[1])
assert not store.is_owner
assert sorted(store.facts()) == [
    "block_bytes", "capacity_bytes", "read_memory_bytes", "read_memory_free_bytes"
]
total = 0
for batch in store.open("table"):
    total += int(batch["x"].sum())
reader = store.open("arrays", depth=2).arrays()
total += int(next(reader).sum())
print(total, flush=True)
sys.stdin.readline()
try:
    for array in reader:
        pass
except StreamError as error:
    print(error, flush=True)
else:
    print("all", flush=True)
"""


def test_another_process_borrows_until_the_owner_ends(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", CAPACITY)
    with store.create("table") as writer:
        writer.append(Table(5))
    with store.create("arrays") as writer:
        for number in range(20):
            writer.append(np.full(100_000, number + 1))
    command = [sys.executable, "-c", BORROWER, str(tmp_path / "store")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    borrowers: list[Any] = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for borrower in borrowers:
        assert borrower.stdout.readline() == "100010\n"
    assert borrowers[0].communicate("\n", DEADLINE)[0] == "all\n"
    store.close()
    assert "open it again" in borrowers[1].communicate("\n", DEADLINE)[0]
    assert all(borrower.returncode == 0 for borrower in borrowers)


SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
from forebay.stream import Store
store = Store(sys.argv[1], "65MiB")
kept = store.create("kept", lifetime="kept")
kept.append(np.arange(3))
kept.seal()
writer = store.create("open")
writer.append(b"block")
{body}
"""


def run_script(path: Path, body: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT.format(body=body), str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("reader = store.open('open', follow=True)", 0),
        ("blocks = list(store.open('kept').arrays()); sys.exit(3)", 3),
        ("raise ValueError", 1),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
    ],
)
def test_the_end_of_an_interpreter_leaves_nothing_behind(
    tmp_path: Path, body: str, status: int
) -> None:
    assert run_script(tmp_path, body).returncode == status
    with Store(tmp_path) as store:
        assert [info.name for info in store.list()] == ["kept"]


@pytest.mark.parametrize(
    "wait",
    [
        "next(store.open('open', follow=True).bytes()); next(reader)",
        "next(waiting)",
        "[full.append(bytes(4_000_000)) for _ in range(99)]",
        "store.destroy('two', timeout=600)",
    ],
)
def test_ctrl_c_ends_every_wait(tmp_path: Path, wait: str) -> None:
    body = f"""
reader = store.open('open', follow=True).bytes()
next(reader)
waiting = store.open('kept', when_held='wait', depth=1).bytes()
held = next(waiting)
with store.create('two') as two:
    two.append(b'1'); two.append(b'2')
waiting = store.open('two', when_held='wait', depth=1).bytes()
held = next(waiting)
full = store.create('full', full='wait')
main = threading.main_thread().ident
try:
    threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    {wait}
except KeyboardInterrupt:
    sys.exit(7)
"""
    done = run_script(tmp_path, body)
    assert done.returncode == 7, done.stderr


def test_ctrl_c_ends_the_wait_for_another_thread(tmp_path: Path) -> None:
    body = """
reader = store.open('open', follow=True)
blocks = reader.bytes()
next(blocks)
threading.Thread(target=lambda: next(blocks), daemon=True).start()
time.sleep(0.3)
main = threading.main_thread().ident
try:
    threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    reader.close()
except KeyboardInterrupt:
    os._exit(7)
"""
    done = run_script(tmp_path, body)
    assert done.returncode == 7, done.stderr


def test_a_handler_that_uses_the_reader_it_interrupts_gets_an_error(tmp_path: Path) -> None:
    body = """
reader = store.open('open', follow=True)
signal.signal(signal.SIGALRM, lambda *_: reader.close())
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    list(reader.bytes())
except Exception as error:
    assert 'in use by this call' in str(error), error
    reader.close()
    sys.exit(7)
"""
    done = run_script(tmp_path, body)
    assert done.returncode == 7, done.stderr


def test_importing_starts_no_thread_and_no_other_library() -> None:
    code = """
import sys, threading, os
import forebay, forebay.stream
assert threading.active_count() == 1
assert len(os.listdir('/proc/self/task')) == 1, os.listdir('/proc/self/task')
assert not {'pyarrow', 'polars', 'pandas', 'torch'} & set(sys.modules), sys.modules.keys()
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_public_classes_and_methods_have_docstrings() -> None:
    for name in stream.__all__:
        kind = getattr(stream, name)
        assert inspect.getdoc(kind), name
        if kind.__module__ != "forebay.stream" or issubclass(kind, tuple | Exception):
            continue
        for attribute, method in vars(kind).items():
            if attribute.startswith("_") or not callable(method):
                continue
            text = inspect.getdoc(method) or ""
            assert text, (name, attribute)
            parameters = [one for one in inspect.signature(method).parameters if one != "self"]
            assert ("Parameters\n-----" in text) == bool(parameters), (name, attribute)
            for parameter in parameters:
                assert f"\n{parameter}\n" in text, (name, attribute, parameter)
    assert issubclass(StreamError, forebay.ForebayError)


def test_eight_threads_write_and_read_one_store(store: Store) -> None:
    family = store.family("threads")
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(5):
                name = f"{thread}-{number}"
                with family.create(name) as writer:
                    for block in range(4):
                        writer.append(np.full(10_000, thread * 100 + block))
                read = [int(array[0]) for array in store.open(name, depth=1).arrays()]
                assert read == [thread * 100 + block for block in range(4)]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert errors == []
    assert len(store.list()) == 40
    family.destroy()
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


def test_signal_handlers_run_during_a_wait(store: Store) -> None:
    """A handler that returns does not end the wait."""
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    try:
        writer = store.create("live")
        reader = store.open("live", follow=True).bytes()

        def finish() -> None:
            wait_for("the signal is handled", lambda: bool(seen))
            writer.append(b"1")
            writer.seal()

        threading.Thread(target=finish).start()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert [bytes(block) for block in reader] == [b"1"]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == [signal.SIGALRM]


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


class Interrupted(Exception):
    """A handler raised it."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Interrupts a call that waits."""

    def handler(*_: object) -> None:
        raise Interrupted

    def run(call: Callable[[], object]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(Interrupted):
                call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, handler)
    yield run
    signal.signal(signal.SIGALRM, before)


def test_an_interrupted_reader_reads_on(
    store: Store, interrupt: Callable[[Callable[[], object]], None]
) -> None:
    writer = store.create("live")
    reader = store.open("live", follow=True)
    for call in (reader.__next__, reader.__arrow_c_schema__, reader.__arrow_c_stream__):
        interrupt(call)
    writer.append(Table(4))
    assert next(reader)["x"].tolist() == [0, 1, 2, 3]
    interrupt(reader.__next__)
    writer.append(Table(2))
    writer.seal()
    assert [batch["x"].tolist() for batch in reader] == [[0, 1]]
    assert list(reader) == []


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


def test_an_interrupted_destroy_ends_with_the_last_reader(
    store: Store, interrupt: Callable[[Callable[[], object]], None]
) -> None:
    with store.create("s") as writer:
        writer.append(b"1")
    reader = store.open("s")
    interrupt(lambda: store.destroy("s", timeout=float("inf")))
    assert list(store.list()) == []
    assert [bytes(block) for block in reader.bytes()] == [b"1"]
    del reader
    gc.collect()
    wait_for(
        "space is back", lambda: store.facts()["free_bytes"] == store.facts()["capacity_bytes"]
    )
