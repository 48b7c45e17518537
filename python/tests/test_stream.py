"""Streams from Python: tables, arrays and bytes, without a copy; nothing is left behind."""

from __future__ import annotations

import ctypes
import gc
import inspect
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_support import (
    CAPACITY,
    DTYPES,
    Table,
    is_all_back,
    is_view,
    random_array,
    same,
    wait_for,
)

import forebay
from forebay import stream
from forebay.stream import Store, StreamError


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
