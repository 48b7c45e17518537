"""Full disks and devices cost hits only, and are counted (promise 5)."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import World

import forebay

#: More than the disk's capacity.
LARGE = [f"{item:04}".encode() * (16 << 10) for item in range(480)]


@pytest.fixture(scope="module")
def large_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with harness.origin(tmp_path_factory.mktemp("full"), contents=LARGE) as world:
        yield world


def run(*command: Any) -> str:
    ran = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=60
    )
    if ran.returncode != 0:
        pytest.skip(f"{command[0]} is not permitted: {ran.stderr.strip()}")
    return ran.stdout.strip()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=16M", "tmpfs", disk)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True, timeout=60)


def is_every_item_once(dataset: forebay.Dataset) -> bool:
    loader = forebay.DataLoader(dataset, 16, shuffle=True, num_workers=2, collate_fn=list)
    epochs = [Counter(item for batch in loader for item in batch) for _ in range(2)]
    return epochs == [Counter(LARGE)] * 2


def test_a_job_runs_without_a_node_that_cannot_reserve_space(
    large_world: World, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    dataset = large_world.dataset()
    with pytest.warns(RuntimeWarning, match="are free.*reading the origin directly"):
        assert dataset[3] == LARGE[3]
    assert is_every_item_once(dataset)
    stats = dataset.stats()["agent"]
    assert stats is not None
    assert stats["agent_fallbacks"] > 0, "fallbacks are counted"


def test_a_full_disk_of_the_catalogue_costs_hits_only(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 5, for a wrapped dataset."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    (small_disk / "forebay" / "catalogues").mkdir(mode=0o700, parents=True)
    with suppress(OSError), (small_disk / "all of it").open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass
    with pytest.warns(RuntimeWarning, match=r"No space left.*not cached until there is space"):
        dataset = forebay.wrap(LARGE[:40], name="no space")
    loader = forebay.DataLoader(dataset, 16, shuffle=True, num_workers=2, collate_fn=list)
    for _ in range(2):
        assert Counter(item for batch in loader for item in batch) == Counter(LARGE[:40])
    assert dataset.stats()["read"] == 80, "reads are counted"
    with pytest.raises(forebay.ForebayError, match="give order='strict'"):
        forebay.DataLoader(dataset, 16, shuffle=True, order="substitute")


@pytest.fixture
def overpromised_device(small_disk: Path) -> Iterator[str]:
    """A block device of 64 MiB with space for 16; later writes fail."""
    backing = small_disk / "backing"
    with backing.open("wb") as file:
        file.truncate(64 << 20)
    device = run("losetup", "--find", "--show", backing)
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True, timeout=60)


def test_failing_writes_of_a_device_cost_hits_only(
    large_world: World, overpromised_device: str, tmp_path: Path
) -> None:
    """Promises 1, 2 and 5: failed writes are noticed, and their blobs are read again."""
    options = ("--device", overpromised_device, "--capacity", "64MiB", "--memory-cache", "1MiB")
    with harness.node(tmp_path / "node", *options):
        socket = tmp_path / "node" / "node.sock"
        dataset = large_world.dataset(cache=socket)
        assert is_every_item_once(dataset)
        node = dataset.stats()["node"]
    assert node is not None
    assert node["flash_faults"] > 0
