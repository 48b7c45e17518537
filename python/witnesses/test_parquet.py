"""The Parquet recipe of `docs/guide/formats.md`, run as it is printed there, over real files."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay._runtime.processes import binary

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "formats.md"
ROWS = [{"text": f"row {row}", "label": row % 3, "vector": [row, row / 2]} for row in range(500)]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The socket of this test's own node, below a short path."""
    with tempfile.TemporaryDirectory(prefix="fb-") as directory:
        socket = Path(directory) / "run" / "node.sock"
        monkeypatch.setenv("FOREBAY_SOCKET", str(socket))
        monkeypatch.setenv("FOREBAY_CAPACITY", "100MB")
        monkeypatch.setenv("XDG_CACHE_HOME", directory)
        yield socket
        subprocess.run([binary(), "stop", "--socket", str(socket)], check=False, timeout=30)


def rows_of(*paths: Path, **options: Any) -> Any:
    found = re.search(r"^## Parquet\n.*?```python\n(.*?)```", PAGE.read_text(), re.M | re.S)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[1], names)
    return names["ParquetRows"](paths, **options)


def test_rows_are_read_by_row_group_and_cached(tmp_path: Path, node: Path) -> None:
    paths = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    pq.write_table(pa.Table.from_pylist(ROWS[:300]), paths[0], row_group_size=64)
    pq.write_table(pa.Table.from_pylist(ROWS[300:]), paths[1], row_group_size=50)
    for job in range(2):
        items = rows_of(*paths)
        dataset = forebay.wrap(items, key=items.key, name="rows")
        assert [dataset[at] for at in (0, 299, 300, 499)] == [ROWS[at] for at in (0, 299, 300, 499)]
        assert dataset.__getitems__(list(range(500))) == ROWS
        assert dataset.stats()["read"] == (0 if job else 500)
    assert rows_of(*paths, columns=["label"])[7] == {"label": 1}


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"x\.parquet` is truncated, or no Parquet file"):
        rows_of(path)
