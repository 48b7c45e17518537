"""Training frameworks with two real ranks, as their documentation shows it.

Every rank writes the items that it has seen. Wrong divisions are silent: a rank that gets all
items, or half of its part, trains without an error.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from harness import CONTENTS, ITEMS, World

import forebay

#: Distinct items of each rank: 203 divided by two, rounded up.
PART = -(-ITEMS // 2)

HEAD = """
import hashlib, json, sys
import torch
import forebay

digest, options, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]

def number(item):
    return torch.frombuffer(hashlib.sha256(item).digest()[:4], dtype=torch.int32).clone()

def save(rank, seen):
    with open(f"{out}/{rank}.json", "w") as file:
        json.dump(seen, file)

dataset = forebay.Dataset(digest, storage_options=options, cache=None, transform=number)
loader = forebay.DataLoader(dataset, batch_size=16, shuffle=True)
seen = []
"""

TORCH = """
import torch.distributed as distributed
distributed.init_process_group("gloo")
for batch in loader:
    distributed.barrier()
    seen += batch.flatten().tolist()
save(distributed.get_rank(), seen)
distributed.destroy_process_group()
"""

LIGHTNING = """
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch):
        seen.extend(batch.flatten().tolist())
        return (self.weight * batch.float()).sum() * 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-9)

trainer = lightning.Trainer(
    devices=2, accelerator="cpu", strategy="ddp", max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, default_root_dir=out,
)
trainer.fit(Model(), loader)
save(trainer.global_rank, seen)
"""

ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
if sys.argv[4] == "prepare":
    loader = accelerator.prepare(loader)
for batch in loader:
    seen += batch.flatten().tolist()
save(accelerator.process_index, seen)
"""


def ran(
    world: World,
    directory: Path,
    script: str,
    *arguments: str,
    environments: tuple[Mapping[str, str], ...] = ({},),
) -> list[subprocess.CompletedProcess[str]]:
    """Run a script in one process per environment."""
    path = directory / "train.py"
    path.write_text(HEAD + script)
    command = [sys.executable, str(path), str(world.digest), json.dumps(world.options)]
    command += [str(directory), *arguments]
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, **own},
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own in environments
    ]
    outputs = [process.communicate(timeout=240) for process in started]
    return [
        subprocess.CompletedProcess(command, process.returncode, *output)
        for process, output in zip(started, outputs, strict=True)
    ]


def two_ranks() -> tuple[Mapping[str, str], ...]:
    """The variables that launchers such as torchrun set."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return tuple({**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2))


def assert_divided(directory: Path) -> None:
    """Every item is seen once; one item is repeated, so that both ranks have as many."""
    ranks = [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]
    assert [len(rank) for rank in ranks] == [PART, PART]
    assert len(Counter(ranks[0] + ranks[1])) == len(set(CONTENTS))


# Promise 2. The recipe of the documentation makes the loader before `fit` starts the ranks.
def test_lightning_divides_a_loader_that_was_made_before_fit(world: World, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    (process,) = ran(world, tmp_path, LIGHTNING)
    assert process.returncode == 0, process.stderr[-3000:]
    assert_divided(tmp_path)


def test_a_loader_that_was_made_before_init_process_group(world: World, tmp_path: Path) -> None:
    for process in ran(world, tmp_path, TORCH, environments=two_ranks()):
        assert process.returncode == 0, process.stderr[-3000:]
    assert_divided(tmp_path)


def test_accelerate_without_prepare_of_the_loader(world: World, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    for process in ran(world, tmp_path, ACCELERATE, "as it is", environments=two_ranks()):
        assert process.returncode == 0, process.stderr[-3000:]
    assert_divided(tmp_path)


def test_dividing_twice_is_an_error(world: World, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    for process in ran(world, tmp_path, ACCELERATE, "prepare", environments=two_ranks()):
        assert process.returncode == 1
        assert "do not pass it to `prepare` of Accelerate" in process.stderr


def test_several_ranks_without_a_number_are_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = forebay.DataLoader(world.dataset(cache=None), shuffle=True, collate_fn=list)
    with pytest.raises(ValueError, match=r"WORLD_SIZE=2 without RANK.*init_process_group"):
        next(iter(loader))


def test_ranks_of_srun(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = forebay.DataLoader(
        world.dataset(cache=None), batch_size=16, shuffle=True, collate_fn=list
    )
    # A batch script is one process, whatever the number of tasks.
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert len(loader) == -(-ITEMS // 16)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert len(loader) == -(-ITEMS // 4 // 16)
    parts = list[bytes]()
    for rank in range(4):
        monkeypatch.setenv("SLURM_PROCID", str(rank))
        dataset = world.dataset(cache=None)
        parts += [
            item
            for batch in forebay.DataLoader(dataset, 16, shuffle=True, collate_fn=list)
            for item in batch
        ]
    assert set(parts) == set(CONTENTS)


def test_ranks_that_change_after_items_were_given_are_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = forebay.DataLoader(world.dataset(cache=None), 16, shuffle=True, collate_fn=list)
    next(iter(loader))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"rank 0 of 1, and this is rank 1 of 2 now; make a new"):
        iter(loader)


def test_a_spawned_worker_has_the_ranks_of_its_parent(world: World) -> None:
    dataset = forebay.IterableDataset(world.dataset(cache=None), rank=1, world_size=2)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn"
    )
    assert len(list(loader)) == ITEMS // 2
