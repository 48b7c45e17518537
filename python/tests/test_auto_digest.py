"""Datasets of URLs: the digest is built once, kept, and compared with the origin."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import harness
import pytest
from harness import CONTENTS, ITEMS, World

import forebay


def dataset_of(world: World, url: str = "s3://bucket/train", **options: Any) -> forebay.Dataset:
    return forebay.Dataset(url, cache=None, storage_options=world.options, **options)


def digests() -> list[Path]:
    return sorted((Path(os.environ["XDG_CACHE_HOME"]) / "forebay" / "digests").glob("*.digest"))


def gets(world: World) -> dict[str, int]:
    """Reads of each object."""
    return {name: counts["gets"] for name, counts in world.counters()["objects"].items()}


@pytest.mark.parametrize("layout", ["files", "pack"])
def test_each_object_is_read_once_on_first_use(
    slow_world: World, layout: Literal["files", "pack"]
) -> None:
    """Promise 3 for a new URL: the digest's build and the first epoch share one read."""
    slow_world.reset_counters()
    options = slow_world.options
    dataset = forebay.Dataset("s3://bucket/train", layout=layout, storage_options=options)
    loader = forebay.DataLoader(dataset, batch_size=16, collate_fn=list)
    assert sorted(item for batch in loader for item in batch) == sorted(CONTENTS)
    assert set(gets(slow_world).values()) == {1}
    assert len(gets(slow_world)) == sum(map(bool, CONTENTS)), "empty objects are not read"


def test_a_rebuild_reads_what_has_changed(slow_world: World) -> None:
    assert list(dataset_of(slow_world)) == CONTENTS
    name, changed = "00003.bin", b"changed"
    (slow_world.objects / name).write_bytes(changed)
    slow_world.reset_counters()
    again = dataset_of(slow_world, rebuild=True)
    assert gets(slow_world) == {f"bucket/train/{name}": 1}
    assert again[3] == changed


def test_the_digest_of_a_url_is_built_once(
    world: World, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    assert list(dataset_of(world)) == CONTENTS
    assert "building a digest of s3://bucket/train, once" in capfd.readouterr().err
    world.reset_counters()
    again = dataset_of(world)
    assert len(again) == ITEMS
    assert world.counters()["bytes_sent"] < 200_000, "a listing only"
    assert "building" not in capfd.readouterr().err
    assert not [warning for warning in recwarn if warning.category is RuntimeWarning]
    assert len(digests()) == 1
    packed = dataset_of(world, layout="pack")
    assert list(packed) == CONTENTS
    assert packed._id != again._id
    assert len(digests()) == 2


@pytest.mark.parametrize("layout", ["files", "pack"])
def test_a_changed_origin_is_read_where_it_has_changed(
    slow_world: World, layout: Literal["files", "pack"], capfd: pytest.CaptureFixture[str]
) -> None:
    before = dataset_of(slow_world, layout=layout)
    (slow_world.objects / "00003.bin").write_bytes(b"changed")
    (slow_world.objects / "00004.bin").unlink()
    (slow_world.objects / "00005.new").write_bytes(b"new")
    slow_world.reset_counters()
    after = dataset_of(slow_world, layout=layout)
    assert "has changed (1 changed, 1 removed, 1 added)" in capfd.readouterr().err
    if layout == "files":
        names = ["00003.bin", "00005.new"]
        assert gets(slow_world) == {f"bucket/train/{name}": 1 for name in names}
    assert after._id != before._id
    assert len(after) == ITEMS
    assert after[3] == b"changed"
    assert dataset_of(slow_world, layout=layout)._id == after._id


def test_a_directory_is_a_dataset(world: World, tmp_path: Path) -> None:
    directory = world.mirror(tmp_path / "mirror")
    for source in (directory, f"file://{directory}"):
        assert list(forebay.Dataset(source, cache=None)) == CONTENTS


def test_an_unreachable_origin_is_not_an_error(tmp_path: Path) -> None:
    """Promise 5: the cache may have all items."""
    with harness.origin(tmp_path / "gone") as world:
        world.options["deadline_seconds"] = 1
        dataset_of(world)
    assert len(dataset_of(world)) == ITEMS


def test_urls_that_cannot_be_read_are_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(forebay.DigestError, match=r"s3://bucket/nothing`; check the prefix$"):
        dataset_of(world, "s3://bucket/nothing")
    with pytest.raises(forebay.DigestError, match="no file"):
        forebay.Dataset(tmp_path / "x.digest")
    with pytest.raises(ValueError, match="for URLs"):
        world.dataset(rebuild=True)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@127.0.0.1:1/x",
        "s3://key:hunter2@bucket/x",
        "http://127.0.0.1:1/x?sig=hunter2",
        "https://127.0.0.1:1?hunter2",
        "http://127.0.0.1:1/x#hunter2",
        "az://container/x?sv=1&sig=hunter2",
    ],
)
def test_secrets_in_urls_are_neither_printed_nor_passed_on(
    url: str,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Other users can read a process's arguments."""
    program = tmp_path / "recorder"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/arguments\nexit 2\n')
    program.chmod(0o700)
    monkeypatch.setenv("FOREBAY_BIN", str(program))
    attempts: list[Callable[[], object]] = [
        lambda: forebay.Dataset(url, cache=None),
        lambda: world.dataset(origin=url, cache=None),
        lambda: forebay.Dataset("s3://b/x", cache=None, storage_options={"endpoint": url}),
    ]
    for attempt in attempts:
        with pytest.raises(forebay.ForebayError, match="cannot be used") as refused:
            attempt()
        assert "hunter2" not in str(refused.value)
    assert "hunter2" not in "".join(capfd.readouterr())
    assert not (tmp_path / "arguments").exists(), "no process was started"


def test_control_characters_of_a_source_are_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(forebay.DigestError, match=r"no file or directory `x\\u\{1b\}\[31m`"):
        forebay.Dataset("x\x1b[31m")
    with pytest.raises(forebay.DigestError) as refused:
        forebay.Dataset("file:///none\x1b[31m", cache=None)
    assert "\x1b" not in str(refused.value) + "".join(capfd.readouterr())


def test_an_empty_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="the source is empty"):
        forebay.Dataset("")


def test_one_relative_path_in_two_directories_is_two_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 1: digests are kept by absolute path."""
    for name in ("one", "two"):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data" / "item").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        assert list(forebay.Dataset("data", cache=None)) == [name.encode()]
    absolute = tmp_path / "two" / "data"
    for same in (absolute, f"{absolute}/", Path("data")):
        assert list(forebay.Dataset(same, cache=None)) == [b"two"]
    assert len(digests()) == 2


def test_one_bucket_name_on_two_servers_is_two_datasets(
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


def test_layouts_with_parameters_are_refused_for_urls(world: World) -> None:
    with pytest.raises(ValueError, match=r"no layout 'records' for a URL.*digest build"):
        dataset_of(world, layout="records")
    assert digests() == [], "nothing was built"
