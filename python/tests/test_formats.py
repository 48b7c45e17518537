"""The recipes of `docs/guide/formats.md`, run as they are printed there, over real files."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

import forebay

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "formats.md"
ITEMS = [f"item {item:03} ".encode() * (1 + item % 7) for item in range(60)]


def recipe(name: str) -> dict[str, Any]:
    """The names that the code below a heading defines."""
    found = re.search(rf"^## {name}\n.*?```python\n(.*?)```", PAGE.read_text(), re.M | re.S)
    assert found is not None, f"{PAGE} has no recipe for {name}"
    names: dict[str, Any] = {}
    exec(found[1], names)
    return names


def check(items: Any, name: str, expected: list[Any]) -> None:
    """Every item, in one epoch of a loader and in another by a second job, from the cache."""
    assert len(items[0]) > 0, "open in this process, too, before workers are forked"
    for job in range(2):
        dataset = forebay.wrap(items, key=items.key, name=name, verify=0)
        loader = forebay.DataLoader(
            dataset, batch_size=8, shuffle=True, num_workers=2 - job, collate_fn=list
        )
        given = [item for batch in loader for item in batch]
        assert sorted(map(repr, given)) == sorted(map(repr, expected))
        assert dataset.stats()["read"] == (0 if job else len(expected))


def test_zip(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, item in enumerate(ITEMS):
            archive.writestr(f"{number:03}.txt", item)
    check(recipe("Zip")["ZipItems"](path), "zip", ITEMS)


def tfrecord(items: list[bytes]) -> bytes:
    """TFRecord, with checksums of 0: the recipe does not check them."""
    return b"".join(struct.pack("<QI", len(item), 0) + item + bytes(4) for item in items)


def test_tfrecord(tmp_path: Path) -> None:
    paths = [tmp_path / "0.tfrecord", tmp_path / "1.tfrecord"]
    paths[0].write_bytes(tfrecord(ITEMS[:25]))
    paths[1].write_bytes(tfrecord(ITEMS[25:]))
    kind = recipe("TFRecord")["TFRecordItems"]
    check(kind(paths), "tfrecord", ITEMS)
    for cut in (1, 5, 20):
        paths[1].write_bytes(tfrecord(ITEMS[25:])[:-cut])
        with pytest.raises(ValueError, match="is truncated"):
            kind(paths)


def test_lmdb(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with (
        lmdb.open(str(tmp_path / "x")) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, item in enumerate(ITEMS):
            transaction.put(f"{number:03}".encode(), item)
    check(recipe("LMDB")["LmdbItems"](str(tmp_path / "x")), "lmdb", ITEMS)


def write_mds(directory: Path, encodings: dict[str, str], samples: list[list[bytes]]) -> Path:
    """A shard as `MDSWriter` lays it out; integers have a fixed size."""
    directory.mkdir()
    sizes = [8 if encoding == "int" else None for encoding in encodings.values()]
    config = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "column_names": list(encodings),
        "column_encodings": list(encodings.values()),
        "column_sizes": sizes,
    }
    rows = []
    for sample in samples:
        columns = list(zip(sizes, sample, strict=True))
        head = b"".join(struct.pack("<I", len(column)) for size, column in columns if size is None)
        rows.append(head + b"".join(sample))
    text = json.dumps(config, sort_keys=True).encode()
    at = 4 + 4 * (len(rows) + 1) + len(text)
    ends = [at]
    for row in rows:
        ends.append(ends[-1] + len(row))
    content = struct.pack(f"<I{len(ends)}I", len(rows), *ends) + text + b"".join(rows)
    shard = directory / "shard.00000.mds"
    shard.write_bytes(content)
    raw = {"basename": shard.name, "bytes": len(content)}
    entry = {**config, "raw_data": raw, "samples": len(rows)}
    (directory / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    return shard


def test_mds(tmp_path: Path) -> None:
    samples = [[item, struct.pack("<q", at)] for at, item in enumerate(ITEMS)]
    shard = write_mds(tmp_path / "x", {"text": "str", "label": "int"}, samples)
    kind = recipe("MosaicML MDS")["MdsItems"]
    expected = [{"text": item.decode(), "label": at} for at, item in enumerate(ITEMS)]
    check(kind(tmp_path / "x"), "mds", expected)
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is truncated"):
        kind(tmp_path / "x")
    write_mds(tmp_path / "y", {"text": "str", "image": "jpeg2000"}, [[b"a", b"b"]])
    with pytest.raises(ValueError, match=r"has the encodings \['jpeg2000'\]"):
        kind(tmp_path / "y")
