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
    with pytest.raises(forebay.DigestError, match=r"s3://bucket/nothing`; check the prefix$"):
        dataset_of(world, "s3://bucket/nothing")
    with pytest.raises(forebay.DigestError, match="no file"):
        forebay.Dataset(tmp_path / "x.digest")
    with pytest.raises(ValueError, match="for URLs"):
        world.dataset(rebuild=True)


def test_one_name_in_two_places_is_two_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 1: a digest is kept by the place that it is of, not by what was typed."""
    for place in ("one", "two"):
        (tmp_path / place / "data").mkdir(parents=True)
        (tmp_path / place / "data" / "item").write_text(place)
        monkeypatch.chdir(tmp_path / place)
        assert list(forebay.Dataset("data", cache=None)) == [place.encode()]
    absolute = tmp_path / "two" / "data"
    for same in (absolute, f"{absolute}/", Path("data")):
        assert list(forebay.Dataset(same, cache=None)) == [b"two"]
    assert len(digests()) == 2


def test_one_bucket_of_two_servers_is_two_datasets(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(world.options["access_key"]))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", str(world.options["secret_key"]))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with harness.origin(tmp_path / "other", contents=[b"another"]) as other:
        for server, expected in ((world, CONTENTS), (other, [b"another"])):
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
            assert list(forebay.Dataset("s3://bucket/train/", cache=None)) == expected
            assert list(forebay.Dataset("s3://bucket/train", cache=None)) == expected
    assert len(digests()) == 2


def test_layouts_that_a_url_cannot_have(world: World) -> None:
    with pytest.raises(ValueError, match=r"no layout 'records' for a URL.*digest build"):
        dataset_of(world, layout="records")
    assert digests() == [], "nothing was built in vain"
