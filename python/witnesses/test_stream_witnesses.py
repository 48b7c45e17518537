"""Arrow witnesses: other libraries write streams and read them back, in both directions.

Every value has to come back equal, and the first value of a column has to lie in the memory of the
store.
"""

from __future__ import annotations

import datetime
import decimal
import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from forebay.stream import Store, StreamError

#: Generous: the machines of CI are slow.
DEADLINE = 60.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", "129MiB") as store:
        yield store


def types() -> dict[str, pa.DataType]:
    """Every type of Arrow that its IPC format has."""
    flat = [pa.null(), pa.bool_(), pa.string(), pa.large_string(), pa.string_view()]
    flat += [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(5)]
    flat += [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    flat += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    flat += [pa.float16(), pa.float32(), pa.float64()]
    flat += [pa.decimal128(12, 2), pa.decimal256(40, 3), pa.date32(), pa.date64()]
    flat += [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
    flat += [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")]
    flat += [pa.timestamp("us", "Europe/Zurich"), pa.month_day_nano_interval()]
    flat += [pa.duration(unit) for unit in ("s", "ms", "us", "ns")]
    nested = [
        pa.list_(pa.int32()),
        pa.large_list(pa.string()),
        pa.list_(pa.string_view()),
        pa.list_(pa.float32(), 3),
        pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]),
        pa.struct([("view", pa.string_view())]),
        pa.map_(pa.string(), pa.int64()),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.string(), ordered=True),
        pa.list_(pa.struct([("x", pa.float64()), ("y", pa.bool_())])),
    ]
    return {str(kind): kind for kind in [*flat, *nested]}


def values(kind: pa.DataType, rows: int, random: np.random.Generator) -> list[Any]:
    """Values of a type, some of them null."""
    return [None if random.random() < 0.2 else value(kind, random) for _ in range(rows)]


def value(kind: pa.DataType, random: np.random.Generator) -> Any:
    number = int(random.integers(0, 100))
    if pa.types.is_null(kind):
        return None
    if pa.types.is_dictionary(kind):
        return "abc"[number % 3]
    if pa.types.is_map(kind):
        return [(f"key {at}", at) for at in range(number % 3)]
    if pa.types.is_struct(kind):
        return {field.name: value(field.type, random) for field in kind}
    if pa.types.is_fixed_size_list(kind):
        return [float(number)] * kind.list_size
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [value(kind.value_type, random) for _ in range(number % 4)]
    if pa.types.is_boolean(kind):
        return number % 2 == 0
    if pa.types.is_integer(kind):
        return number
    if pa.types.is_floating(kind):
        return float(number)
    if pa.types.is_decimal(kind):
        return decimal.Decimal(number) / 4
    if pa.types.is_fixed_size_binary(kind):
        return bytes([number]) * kind.byte_width
    if "binary" in str(kind):
        return bytes([number]) * (number // 3)
    if "string" in str(kind):
        return "é" * (number // 3)
    if pa.types.is_date(kind):
        return datetime.date(2026, 1, 1) + datetime.timedelta(days=number)
    if pa.types.is_time(kind):
        return datetime.time(number % 24, number % 60)
    if pa.types.is_duration(kind):
        return datetime.timedelta(seconds=number)
    if pa.types.is_interval(kind):
        return pa.MonthDayNano([number, 2, 3])
    return datetime.datetime(2026, 1, 1) + datetime.timedelta(hours=number)


def table_of(kind: pa.DataType, rows: int = 1000) -> pa.Table:
    random = np.random.default_rng(1)
    column = pa.array(values(kind, rows, random), kind)
    return pa.table({"column": column, "row": pa.array(range(rows))})


def write(store: Store, name: str, *tables: Any) -> None:
    with store.create(name) as writer:
        for table in tables:
            writer.append(table)


def is_view(store: Store, address: int) -> bool:
    first, end = store._native.read_memory()
    return first <= address < end


@pytest.mark.parametrize("kind", types().values(), ids=types())
def test_every_type_comes_back_equal_from_pyarrow(store: Store, kind: pa.DataType) -> None:
    table = table_of(kind)
    write(store, "whole", table)
    assert pa.table(store.open("whole")).equals(table)
    # Slices and batches, an empty one among them, and the batches one by one.
    parts = [table.slice(0, 10), table.slice(10, 0), table.slice(10, 500), table.slice(510)]
    write(store, "parts", *parts, *table.slice(3, 40).to_batches())
    expected = pa.concat_tables([*parts, table.slice(3, 40)])
    batches = [pa.record_batch(batch) for batch in store.open("parts")]
    assert pa.Table.from_batches(batches, expected.schema).equals(expected)
    del batches
    # An empty table has a schema.
    write(store, "empty", table.slice(0, 0))
    assert pa.table(store.open("empty")).schema.equals(table.schema)


def test_the_first_value_of_a_column_lies_in_the_memory_of_the_store(store: Store) -> None:
    """0 bytes are copied between the device and the consumer."""
    table = pa.table({"x": np.arange(2_000_000), "y": np.random.default_rng(1).random(2_000_000)})
    write(store, "table", table)
    rows = 0
    for batch in store.open("table"):
        for column in pa.record_batch(batch).columns:
            assert is_view(store, column.buffers()[1].address)
        assert is_view(store, batch["y"].__array_interface__["data"][0])
        rows += len(batch)
    assert rows == 2_000_000
    # Through the C stream too.
    for arrow in pa.RecordBatchReader.from_stream(store.open("table")):
        assert is_view(store, arrow.column(0).buffers()[1].address)
        rows -= len(arrow)
    assert rows == 0
    assert store.facts()["outside_slots_bytes"] == 0


def test_a_consumer_that_holds_a_table_returns_its_memory(store: Store) -> None:
    table = pa.table({"x": np.arange(3_000_000)})
    write(store, "table", table)
    held = pa.table(store.open("table", depth=2))
    assert held.equals(table)
    del held
    gc.collect()
    end = time.monotonic() + DEADLINE
    while store.facts()["read_memory_free_bytes"] < store.facts()["read_memory_bytes"]:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()),
        pa.large_list(pa.string()),
        pa.list_(pa.string_view()),
        pa.string_view(),
    ],
    ids=str,
)
def test_long_batches_of_nested_values_fill_their_blocks(store: Store, kind: pa.DataType) -> None:
    """A batch of several blocks becomes about that number of blocks, not one per row."""
    rows = 60_000
    item: Any = "text that is not inlined " * 8
    if pa.types.is_list(kind) and pa.types.is_integer(kind.value_type):
        item = list(range(25))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = [item, "short"]
    table = pa.table({"column": pa.array([item] * rows, kind)}).combine_chunks()
    write(store, "long", table)
    (info,) = store.list()
    blocks = info.bytes / store.facts()["block_bytes"]
    assert info.blocks <= 2 * blocks + 2, (info, table.nbytes)
    assert info.bytes <= 1.2 * table.nbytes
    assert pa.table(store.open("long", depth=8)).equals(table)


def test_slices_of_views_are_written_without_the_rest(store: Store) -> None:
    table = pa.table({"v": pa.array([f"text number {at} " * 4 for at in range(20_000)])})
    table = table.cast(pa.schema([("v", pa.string_view())])).combine_chunks()
    write(store, "slices", *(table.slice(at * 100, 100) for at in range(200)))
    (info,) = store.list()
    assert info.bytes <= 2 * table.nbytes
    assert pa.table(store.open("slices")).equals(table)


def frame() -> pl.DataFrame:
    rows = 100_000
    numbers = pl.int_range(rows, eager=True)
    return pl.DataFrame(
        {
            "number": numbers,
            "float": numbers / 3,
            "text": [None if at % 7 == 0 else f"text number {at} of many" for at in range(rows)],
            "flag": numbers % 2 == 0,
            "date": [datetime.date(2026, 1, 1)] * rows,
            "time": [datetime.datetime(2026, 1, 1, 12)] * rows,
            "list": [[at, at + 1] for at in range(rows)],
            "category": pl.Series(["a", "b"] * (rows // 2), dtype=pl.Categorical),
        }
    )


def test_polars_writes_and_reads(store: Store) -> None:
    polars = frame()
    write(store, "polars", polars)
    assert pl.DataFrame(store.open("polars")).equals(polars)
    assert sum(len(pl.DataFrame(batch)) for batch in store.open("polars")) == len(polars)
    assert pa.table(store.open("polars")).num_rows == len(polars)


def test_duckdb_writes_and_reads(store: Store) -> None:
    connection = duckdb.connect()
    relation = connection.sql(
        "select i, i / 3 as f, 'text number ' || i as t, i % 2 = 0 as b, [i, i + 1] as l, "
        "date '2026-01-01' + i::int as d, {'a': i} as s from range(200000) r(i)"
    )
    write(store, "duckdb", relation)
    # DuckDB finds it by its name.
    stream = store.open("duckdb")  # noqa: F841
    found = connection.sql("select count(*), sum(i), max(t), sum(len(l)) from stream").fetchall()
    assert found == [(200_000, 199_999 * 100_000, "text number 99999", 400_000)]
    assert pa.table(store.open("duckdb")).num_rows == 200_000


def test_pandas_writes_and_reads(store: Store) -> None:
    rows = 50_000
    pandas = pd.DataFrame(
        {
            "number": np.arange(rows),
            "float": np.random.default_rng(1).random(rows),
            "text": [f"text {at}" for at in range(rows)],
            "time": pd.date_range("2026-01-01", periods=rows, freq="s"),
        }
    )
    write(store, "pandas", pandas)
    back = pa.table(store.open("pandas")).to_pandas()
    pd.testing.assert_frame_equal(back, pandas)
    if hasattr(pd.DataFrame, "from_arrow"):
        pd.testing.assert_frame_equal(
            pd.DataFrame.from_arrow(store.open("pandas")), pandas, check_dtype=False
        )


def test_another_schema_and_plain_arrays_are_refused(store: Store) -> None:
    writer = store.create("table")
    writer.append(pa.table({"x": [1, 2]}))
    with pytest.raises(StreamError, match=r"has the columns \(x: Int64\).*use one schema"):
        writer.append(pa.table({"y": [1.0]}))
    with pytest.raises(StreamError, match="write arrays to another stream"):
        writer.append(np.zeros(3))
    with pytest.raises(TypeError, match="is not a table"):
        writer.append(pa.array([1, 2]))
    with pytest.raises(TypeError, match="is not a table"):
        writer.append(pa.chunked_array([[1], [2]]))
    writer.seal()
    assert pa.table(store.open("table")).to_pydict() == {"x": [1, 2]}


def test_an_error_of_a_producer_and_of_a_stream_reaches_the_consumer(store: Store) -> None:
    schema = pa.schema([("x", pa.int64())])

    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"x": [1]}, schema)
        raise ValueError("the producer failed")

    with (
        pytest.raises(StreamError, match="the producer failed"),
        store.create("half") as writer,
    ):
        writer.append(pa.RecordBatchReader.from_batches(schema, failing()))
    assert list(store.list()) == []
    write(store, "long", *(pa.table({"x": np.arange(100_000)}) for _ in range(20)))
    reader = pa.RecordBatchReader.from_stream(store.open("long", depth=1))
    assert len(next(reader)) == 100_000
    store.destroy("long", timeout=0)
    with pytest.raises(pa.ArrowException, match="was destroyed while it was read"):
        list(reader)


def test_a_column_is_refused_with_the_way_to_a_table(store: Store) -> None:
    columns: list[Any] = [pa.array([1, 2]), pa.chunked_array([[1, 2]])]
    columns += [pl.Series([1, 2]), pd.Series([1, 2])]
    writer = store.create("numbers")
    for column in columns:
        with pytest.raises(TypeError, match="make a table of it"):
            writer.append(column)
    writer.append(columns[0].to_numpy())
    writer.seal()
    (back,) = store.open("numbers").arrays()
    assert back.tolist() == [1, 2]


REENTRY = """
import sys
import pyarrow as pa
from forebay.stream import Store, StreamError
store = Store(sys.argv[1], "65MiB")
writer = store.create("rows")
schema = pa.schema([("x", pa.int64())])
def batches():
    yield pa.record_batch({"x": pa.array([1])})
    writer.append(pa.table({"x": [2]}))
try:
    writer.append(pa.RecordBatchReader.from_batches(schema, batches()))
except StreamError as error:
    assert "in use by this call" in str(error), error
    sys.exit(7)
"""


def test_a_table_whose_iterator_appends_to_its_writer_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REENTRY, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 7, done.stderr
