"""``forebay.tar_sample``: samples of tar archives as dictionaries."""

from __future__ import annotations

import doctest
import io
import tarfile
from pathlib import Path

import pytest
from harness import World

import forebay
from forebay._data import tar

SAMPLES = 23


def members(sample: int) -> dict[str, bytes]:
    return {"cls": str(sample).encode(), "seg.png": bytes([sample]) * (100 * sample)}


def write(path: Path, directory: str, kind: int) -> None:
    """Write an archive in one of the formats of tar tools."""
    with tarfile.open(path, "w", format=kind) as archive:
        archive.addfile(tarfile.TarInfo("readme"))
        for sample in range(SAMPLES):
            for ending, content in members(sample).items():
                member = tarfile.TarInfo(f"{directory}/{sample:04}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("directory", ["train", "d" * 60 + "/" + "e" * 70], ids=["short", "long"])
@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_samples_are_read_back_unchanged(
    world: World, tmp_path: Path, directory: str, kind: int
) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    write(shards / "a.tar", directory, kind)
    write(shards / "b.tar", directory, kind)
    name = str(tmp_path / "shards.digest")
    digest = world.build(name, "--layout", "tar", "--pack-size", "8kB", url=str(shards))
    dataset = forebay.Dataset(digest, cache=None, transform=forebay.tar_sample)
    assert len(dataset) == 2 * SAMPLES
    views = forebay.Dataset(digest, cache=None, transform=forebay.tar_sample, views=True)
    for at, (sample, viewed) in enumerate(zip(dataset, views, strict=True)):
        key = f"{directory}/{at % SAMPLES:04}"
        assert sample == viewed == {"__key__": key, **members(at % SAMPLES)}


def test_the_example_of_the_docstring() -> None:
    assert doctest.testmod(tar).failed == 0
