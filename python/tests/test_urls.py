"""A dataset of a URL: its digest is built once, kept, and looked at again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import CONTENTS, ITEMS, World

import forebay


def dataset_of(world: World, url: str = "s3://bucket/train", **options: Any) -> forebay.Dataset:
    return forebay.Dataset(url, cache=None, storage_options=world.options, **options)


def digests() -> list[Path]:
    return sorted((Path(os.environ["XDG_CACHE_HOME"]) / "forebay" / "digests").glob("*.digest"))


def test_a_url_is_read_without_a_digest(
    world: World, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    assert list(dataset_of(world)) == CONTENTS
    assert "building a digest of s3://bucket/train, once" in capfd.readouterr().err
    world.reset_counters()
    again = dataset_of(world)
    assert len(again) == ITEMS
    assert world.counters()["bytes_sent"] < 200_000, "nothing but a listing"
    assert "building" not in capfd.readouterr().err
    assert not [warning for warning in recwarn if warning.category is RuntimeWarning]
    assert len(digests()) == 1
    packed = dataset_of(world, layout="pack")
    assert list(packed) == CONTENTS
    assert packed.id != again.id
    assert len(digests()) == 2


def test_a_change_of_the_origin_is_noticed(slow_world: World) -> None:
    before = dataset_of(slow_world)
    (slow_world.objects / "00003.bin").write_bytes(b"changed")
    (slow_world.objects / "00004.bin").unlink()
    (slow_world.objects / "00005.new").write_bytes(b"new")
    with pytest.warns(RuntimeWarning, match="1 changed, 1 vanished, 1 added.*rebuild=True"):
        dataset_of(slow_world)
    rebuilt = dataset_of(slow_world, rebuild=True)
    assert rebuilt.id != before.id
    assert len(rebuilt) == ITEMS
    assert rebuilt[3] == b"changed"


def test_a_directory(world: World, tmp_path: Path) -> None:
    directory = world.mirror(tmp_path / "mirror")
    for source in (directory, f"file://{directory}"):
        assert list(forebay.Dataset(source, cache=None)) == CONTENTS


def test_an_origin_that_is_gone_is_no_reason_to_stop(tmp_path: Path) -> None:
    """Promise 5: what is cached may be all that is needed."""
    with harness.origin(tmp_path / "gone") as world:
        world.options["deadline_seconds"] = 1
        dataset_of(world)
    assert len(dataset_of(world)) == ITEMS


def test_urls_that_cannot_be_read(world: World, tmp_path: Path) -> None:
    with pytest.raises(forebay.DigestError, match="s3://bucket/nothing"):
        dataset_of(world, "s3://bucket/nothing")
    with pytest.raises(forebay.DigestError, match="no file"):
        forebay.Dataset(tmp_path / "x.digest")
    with pytest.raises(ValueError, match="for URLs"):
        world.dataset(rebuild=True)
