"""The recipes of `docs/guide/train.md`, run as they are printed there.

A job stops in mid-epoch, and another continues (promise 2).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import CONTENTS, ITEMS, World

import forebay

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "train.md"
#: Batches after which a job stops.
STOP = 7
#: Batches of 16 in an epoch.
BATCHES = -(-ITEMS // 16)


def recipe(name: str) -> str:
    """The code below a heading."""
    found = re.search(rf"^### {name}\n.*?```python\n(.*?)```", PAGE.read_text(), re.M | re.S)
    assert found is not None, f"{PAGE} has no recipe for {name}"
    return found[1]


def number(item: bytes) -> torch.Tensor:
    """The number of an item; number 7 is empty."""
    return torch.tensor(int(item[5:10]) if item else 7)


class Stops(Exception):
    """Raised to stop a job."""


class Trained:
    """The batches of a job, until it stops."""

    def __init__(self, stop: int | None = None) -> None:
        self.batches: list[list[int]] = []
        self._stop = stop

    def __call__(self, batch: torch.Tensor) -> None:
        if len(self.batches) == self._stop:
            raise Stops
        self.batches.append(batch.tolist())


def each_once(batches: list[list[int]]) -> bool:
    return Counter(item for batch in batches for item in batch) == Counter(range(ITEMS))


def run(name: str, **variables: Any) -> dict[str, Any]:
    """Run a recipe; returns its variables, also of a job that stops."""
    names = {"forebay": forebay, **variables}
    try:
        exec(recipe(name), names)
    except Stops:
        assert variables["stops"]
    return names


def test_torchdata(world: World) -> None:
    pytest.importorskip("torchdata")
    dataset = world.dataset(transform=number)
    first, second = Trained(STOP), Trained()
    stopped = run("torchdata", dataset=dataset, state=None, train=first, stops=True)
    run("torchdata", dataset=dataset, state=stopped["state"], train=second, stops=False)
    assert each_once(first.batches + second.batches)


def test_torchdata_with_a_map_style_dataset(world: World) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    dataset = world.dataset()
    for workers in (0, 2):
        options = {"batch_size": 16, "num_workers": workers, "collate_fn": list}
        first = stateful(dataset, shuffle=True, **options)
        yielded = list(islice(first, 5))
        second = stateful(dataset, shuffle=True, **options)
        second.load_state_dict(first.state_dict())
        items = [item for batch in [*yielded, *second] for item in batch]
        assert Counter(items) == Counter(CONTENTS)


def model_of(train: Callable[[torch.Tensor], None]) -> Any:
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            train(batch)
            return (self.weight * batch).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    return Model()


@pytest.mark.filterwarnings("ignore")
def test_lightning(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # Lightning logs here
    dataset, kept = world.dataset(transform=number), tmp_path / "kept"
    first, second = Trained(STOP), Trained()
    variables: dict[str, Any] = {"dataset": dataset, "directory": str(kept)}
    run("Lightning", model=model_of(first), checkpoint=None, stops=True, **variables)
    (checkpoint,) = kept.iterdir()
    run("Lightning", model=model_of(second), checkpoint=str(checkpoint), stops=False, **variables)
    # The checkpoint is of the fifth batch; later batches are yielded again.
    rest = BATCHES - 5
    assert each_once(first.batches[:5] + second.batches[:rest])
    assert each_once(second.batches[rest:]), "the next epoch is complete, too"


@pytest.mark.filterwarnings("ignore")
def test_accelerate(world: World, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    dataset, kept = world.dataset(transform=number), str(tmp_path / "kept")
    first, second = Trained(STOP), Trained()
    for train, checkpoint in ((first, None), (second, kept)):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        variables: dict[str, Any] = {"dataset": dataset, "directory": kept, "train": train}
        variables |= {"model": model, "optimizer": optimizer, "checkpoint": checkpoint}
        run("Accelerate", stops=checkpoint is None, **variables)
    assert each_once(first.batches + second.batches)
