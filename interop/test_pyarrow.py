"""pyarrow, an independent implementation, reads the digests that forebay writes.

The promise of the format: "any tool that reads Arrow can read it".
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import blake3
import pyarrow as pa
import pyarrow.ipc
import pytest
from conftest import Forebay

# docs/reference/digest-format.md: the key of the public namespace is derived from this text.
PUBLIC_KEY = blake3.blake3(b"", derive_key_context="forebay 2026 public namespace key v1").digest()

OBJECTS = {
    f"class {at % 3}/item {at:02} ü.bin": random.Random(at).randbytes(at * 37) for at in range(40)
}
LABELS = {name: at for at, name in enumerate(sorted(OBJECTS)) if at % 4}


@pytest.fixture(scope="module")
def forebay(tmp_path_factory: pytest.TempPathFactory) -> Forebay:
    """A dataset on disk, with labels for most of it."""
    directory = tmp_path_factory.mktemp("pyarrow")
    for name, content in OBJECTS.items():
        path = directory / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    lines = [
        f"{name},{label},{label / 2},{label % 2 == 0},l{label}" for name, label in LABELS.items()
    ]
    csv = "\n".join(
        ["object,label,half,even,text", *(line.replace("True", "true") for line in lines)]
    )
    (directory / "labels.csv").write_text(csv)
    return Forebay(directory, {})


def build(forebay: Forebay, *options: str) -> tuple[Any, pa.Table]:
    report = forebay.json("digest", "build", "data", "-o", "x.digest", *options)
    with pa.memory_map(str(forebay.directory / "x.digest")) as source:
        return report, pa.ipc.open_file(source).read_all()


def walk(table: pa.Table) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Each item with its part and its blob."""
    for blob in table.to_pylist():
        assert len(blob["parts"]) == len(blob["items"])
        for part, item in zip(blob["parts"], blob["items"], strict=True):
            yield blob, part, item


LAYOUTS = [("files",), ("pack", "--pack-size", "3kB")]


def test_the_schema_is_the_documented_one(forebay: Forebay) -> None:
    _, table = build(forebay, "--columns", "labels.csv")
    u64 = pa.uint64()

    def required(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=False)

    part = [("object", pa.string()), ("version", pa.string()), ("offset", u64), ("length", u64)]
    item = [required("offset", u64), required("length", u64)]
    user = [
        ("label", pa.int64()),
        ("half", pa.float64()),
        ("even", pa.bool_()),
        ("text", pa.string()),
    ]
    item += [pa.field(name, kind, nullable=True) for name, kind in user]
    expected = pa.schema(
        [
            required("address", pa.binary(32)),
            required("start", u64),
            required("length", u64),
            required("parts", pa.list_(required("item", pa.struct([required(*p) for p in part])))),
            required("items", pa.list_(required("item", pa.struct(item)))),
        ]
    )
    assert table.schema.equals(expected), table.schema


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_metadata_equals_the_report(forebay: Forebay, layout: tuple[str, ...]) -> None:
    report, table = build(forebay, "--layout", *layout)
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    for key in ("dataset", "namespace", "origin", "layout", "items", "blobs", "bytes"):
        assert metadata[f"forebay.{key}"] == str(report[key]), key
    for key in ("chunks", "partitions"):
        assert metadata[f"forebay.{key}"] == str(report["chunking"][key]), key
    assert metadata["forebay.format"] == "1"
    assert metadata["forebay.namespace"] == "public"
    assert table.num_rows == report["blobs"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_object_is_one_item_in_order(forebay: Forebay, layout: tuple[str, ...]) -> None:
    _, table = build(forebay, "--layout", *layout)
    names = [part["object"] for _, part, _ in walk(table)]
    assert names == sorted(OBJECTS, key=str.encode)
    start = 0
    for blob in table.to_pylist():
        assert blob["start"] == start
        start += blob["length"]
        offset = 0
        for part, item in zip(blob["parts"], blob["items"], strict=True):
            assert (part["offset"], part["length"]) == (0, len(OBJECTS[part["object"]]))
            assert (item["offset"], item["length"]) == (offset, part["length"])
            assert part["version"]
            offset += part["length"]
        assert offset == blob["length"]
    assert start == sum(map(len, OBJECTS.values()))


def addresses_match(table: pa.Table, key: bytes) -> bool:
    def content(blob: dict[str, Any]) -> bytes:
        return b"".join(OBJECTS[part["object"]] for part in blob["parts"])

    return all(
        blob["address"] == blake3.blake3(content(blob), key=key).digest()
        for blob in table.to_pylist()
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_addresses_are_keyed_blake3_of_the_content(
    forebay: Forebay, layout: tuple[str, ...]
) -> None:
    _, table = build(forebay, "--layout", *layout)
    assert addresses_match(table, PUBLIC_KEY)
    assert forebay.run("namespace", "new", f"{layout[0]}.key").returncode == 0
    key_file = forebay.directory / f"{layout[0]}.key"
    _, table = build(forebay, "--layout", *layout, "--namespace-key", str(key_file))
    assert not addresses_match(table, PUBLIC_KEY)
    assert addresses_match(table, bytes.fromhex(key_file.read_text().splitlines()[1]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_are_stored_with_their_items(forebay: Forebay, layout: tuple[str, ...]) -> None:
    report, table = build(forebay, "--layout", *layout, "--columns", "labels.csv")
    assert report["items_without_columns"] == len(OBJECTS) - len(LABELS)
    for _, part, item in walk(table):
        label = LABELS.get(part["object"])
        expected: tuple[Any, ...] = (None,) * 4
        if label is not None:
            expected = (label, label / 2, label % 2 == 0, f"l{label}")
        assert (item["label"], item["half"], item["even"], item["text"]) == expected


def test_a_file_of_pyarrow_is_not_a_digest(forebay: Forebay) -> None:
    _, table = build(forebay)

    def write(metadata: dict[str, str] | None) -> Path:
        path = forebay.directory / "other.digest"
        schema = table.schema.with_metadata(metadata)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_table(table.replace_schema_metadata(metadata))
        return path

    write(None)
    assert "not a forebay digest" in forebay.refused("digest", "show", "other.digest")
    metadata = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    write(metadata)
    assert "damaged" in forebay.refused("digest", "show", "other.digest")
    write({**metadata, "forebay.format": "99"})
    assert "install a newer forebay" in forebay.refused("digest", "show", "other.digest")
