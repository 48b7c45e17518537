"""One job: one seed's training, by PyTorch's own loader or by forebay's.

``accuracy.py`` starts it, several at once, as processes that know nothing of each other. Every
epoch is a line of JSON on standard output.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import images
import speech
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR

import forebay

#: How often the loader is asked what is open, in batches.
LOOK_EVERY = 20


@dataclass(frozen=True)
class Task:
    """What is trained, and how its digest is built."""

    parts: Any
    batch: int
    epochs: int
    rate: float
    digest: tuple[str, ...]
    columns: tuple[str, ...] = ()
    lengths: str | None = None


TASKS = {
    # Ten records to a blob: a chunk of such a dataset, sorted by class, needs many.
    "images": Task(
        parts=images,
        batch=100,
        epochs=4,
        rate=0.01,
        digest=("--layout", "records", "--record-size", f"{images.RECORD}B", "--pack-size", "32KB"),
    ),
    "speech": Task(
        parts=speech,
        batch=32,
        epochs=5,
        rate=0.004,
        digest=("--columns", "columns.csv"),
        columns=("digit",),
        lengths="seconds",
    ),
}


def shuffled(task: Task, directory: Path, generator: torch.Generator) -> Any:
    """PyTorch's own loader over local files."""
    files = task.parts.Files(directory)
    order: dict[str, Any] = {"batch_size": task.batch, "shuffle": True, "generator": generator}
    if task.lengths:
        order = {"batch_sampler": speech.LikeLengths(files.seconds, task.batch, generator)}
    return torch.utils.data.DataLoader(files, collate_fn=task.parts.collate, **order)


def substituted(
    task: Task, told: argparse.Namespace, generator: torch.Generator
) -> forebay.DataLoader:
    """forebay's loader, over an origin and a node."""
    dataset = forebay.Dataset(
        told.digest,
        transform=task.parts.decode,
        columns=task.columns,
        cache=told.node,
        storage_options=json.loads(told.origin),
        job=f"seed {told.seed}",
    )
    return forebay.DataLoader(
        dataset,
        batch_size=task.batch,
        shuffle=True,
        order="substitute",
        lengths=task.lengths,
        generator=generator,
        collate_fn=task.parts.collate,
    )


class Watch:
    """How the cache did in an epoch, by what the loader says now and then."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader if isinstance(loader, forebay.DataLoader) else None
        self._open = list[tuple[float, float]]()

    def look(self) -> None:
        if self._loader is not None:
            stats = self._loader.stats()
            self._open.append((stats["held_share"], stats["open_share"]))

    def found(self) -> dict[str, Any]:
        if self._loader is None:
            return {}
        stats = self._loader.stats()
        kept = ("items", "hit_share", "origin_bytes", "stall_seconds", "mixing", "probes")
        held, opened = (sum(values) / len(values) for values in zip(*self._open, strict=True))
        return {**{key: stats[key] for key in kept}, "held_share": held, "open_share": opened}


def accuracy(network: nn.Module, test: Iterable[Any]) -> float:
    """The share of the test set that the network is right about."""
    network.eval()
    right = total = 0
    with torch.inference_mode():
        for *inputs, labels in test:
            right += int((network(*inputs).argmax(1) == labels).sum())
            total += len(labels)
    network.train()
    return right / total


def train(told: argparse.Namespace) -> None:
    task = TASKS[told.task]
    torch.set_num_threads(1)
    torch.manual_seed(told.seed)
    network, test = task.parts.Network(), task.parts.test_set(told.directory)
    generator = torch.Generator().manual_seed(told.seed)
    if told.node is None:
        loader = shuffled(task, told.directory, generator)
    else:
        loader = substituted(task, told, generator)
    optimizer = torch.optim.Adam(network.parameters(), lr=task.rate)
    schedule = OneCycleLR(optimizer, task.rate, total_steps=told.epochs * len(loader))
    for epoch in range(told.epochs):
        began, losses, watch = time.process_time(), list[float](), Watch(loader)
        places = own = 0
        for number, (*inputs, labels) in enumerate(loader):
            loss = cross_entropy(network(*inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if task.lengths:
                places += inputs[0].shape[0] * inputs[0].shape[1]
                own += int(inputs[1].sum())
            if number % LOOK_EVERY == 0:
                watch.look()
        line = {
            "seed": told.seed,
            "epoch": epoch + 1,
            "loss": sum(losses) / len(losses),
            "accuracy": accuracy(network, test),
            "padding": 1 - own / places if places else None,
            "cpu_seconds": time.process_time() - began,
            **watch.found(),
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--digest", type=Path)
    parser.add_argument("--node", type=Path)
    parser.add_argument("--origin", help="how the origin is reached, as JSON")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
