"""Ranks of one job: nodes see one job with all its GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import pytest
import torch
from harness import World

import forebay
from forebay._runtime import gpus as gpus_module
from forebay._runtime import ranks as ranks_module
from forebay._runtime.gpus import device_count, gpus_of_job
from forebay._runtime.job import JobName

#: Ten chunks of 3 MiB.
CONTENTS = [f"{item:04}".encode() * (16 << 10) for item in range(480)]
BYTES = sum(map(len, CONTENTS))


@pytest.fixture(scope="module")
def large_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with harness.origin(tmp_path_factory.mktemp("ranks"), contents=CONTENTS) as world:
        yield world


def read(world: World, directory: Path, ranks: int) -> dict[str, int]:
    """Read four epochs on a node with space for half of the dataset, all ranks in step."""
    socket = directory / "node.sock"
    with harness.node(directory, "--capacity", "20MiB", "--memory-cache", "1MiB"):
        datasets = [world.dataset(cache=socket, job="training") for _ in range(ranks)]
        loaders = [
            forebay.DataLoader(
                dataset,
                batch_size=16 // ranks,
                shuffle=True,
                collate_fn=list,
                rank=rank,
                world_size=ranks,
                generator=torch.Generator().manual_seed(3),
            )
            for rank, dataset in enumerate(datasets)
        ]
        world.reset_counters()
        for _ in range(4):
            seen = Counter[bytes]()
            for batches in zip(*loaders, strict=True):
                for batch in batches:
                    seen.update(batch)
            assert seen == Counter(CONTENTS), "every item once (promise 2)"
        (job,) = world.explained(socket)["jobs"]
        assert (job["name"], job["gpus"]) == ("training", ranks)
        node = datasets[0].stats()["node"]
        assert node is not None
        return {"origin": world.counters()["bytes_sent"], "flash": node["flash_inserted_bytes"]}


def test_ranks_read_and_write_as_much_as_one_process(
    large_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As separate jobs, four ranks wrote 16 times as much flash: what they never share rotated."""
    # A larger one would be a second cache.
    monkeypatch.setenv("FOREBAY_AGENT_MEMORY", "1MiB")
    one = read(large_world, tmp_path / "one", 1)
    four = read(large_world, tmp_path / "four", 4)
    assert four["flash"] <= 1.1 * one["flash"], (one, four)
    # A batch in flight on each rank may miss what another rank is just putting.
    assert four["origin"] <= 1.02 * one["origin"] + 0.04 * BYTES, (one, four)


@pytest.mark.parametrize("gpus", [0, -1, 2_000_000, 1.5, "two"])
def test_impossible_numbers_of_gpus_are_refused(world: World, gpus: Any) -> None:
    with pytest.raises(ValueError, match=rf"gpus={gpus!r}.*give 1 to"):
        forebay.DataLoader(world.dataset(), batch_size=4, shuffle=True, gpus=gpus)
    with pytest.raises(ValueError, match="give 1 to"):
        forebay.Sampler(world.dataset(), gpus=gpus)


def test_gpus_are_given_or_ranks_or_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in gpus_module.VISIBLE:
        monkeypatch.delenv(name, raising=False)
    devices = tmp_path / "gpus"
    devices.mkdir()
    monkeypatch.setattr(gpus_module, "DEVICES", (tmp_path / "none", devices))
    assert (gpus_of_job(3, 8), gpus_of_job(None, 8), gpus_of_job(None, 1)) == (3, 8, 1)
    for device in range(4):
        (devices / f"0000:0{device}:00.0").mkdir()
    assert gpus_of_job(None, 1) == 4
    for visible, count in (("0,2", 2), ("", 0), ("-1", 0), ("0,-1,2", 1), ("GPU-5,MIG-7", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert device_count() == count, visible
        assert gpus_of_job(None, 1) == max(1, count)
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def test_the_node_learns_the_number_of_gpus(world: World, own_node: Path) -> None:
    loader = forebay.DataLoader(
        world.dataset(), batch_size=16, shuffle=True, collate_fn=list, gpus=8
    )
    assert sum(map(len, loader)) == harness.ITEMS
    (job,) = world.explained(own_node)["jobs"]
    assert job["gpus"] == 8


def test_ranks_of_a_launcher_have_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert JobName(None).of(0, 1) != JobName(None).of(0, 1), "unnamed jobs are unrelated"
    for name, value in (("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    names = [ranks_module.launched_name(0) for _ in range(2)]
    assert names[0] == names[1] is not None
    assert ranks_module.launched_name(1) != names[0], "another dataset of the job"
    job = JobName(None, launched=names[0])
    assert (job.of(0, 2), job.of(1, 2)) == (f"{names[0]}.0of2", f"{names[0]}.1of2")
    monkeypatch.setenv("MASTER_PORT", "29501")
    assert ranks_module.launched_name(0) != names[0], "another job"
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    here = ranks_module.launched_name(0)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert ranks_module.launched_name(0) != here, "the same port of another machine"
    monkeypatch.delenv("MASTER_PORT")
    assert ranks_module.launched_name(0) is None
