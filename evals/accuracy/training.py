"""One job: training with one seed, with PyTorch's loader or with forebay's.

``accuracy.py`` starts several concurrently, as independent processes. Each prints a line of JSON
per epoch.
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

#: Batches between two samples of the loader's statistics.
SAMPLE_EVERY = 20


@dataclass(frozen=True)
class Task:
    """A dataset and a network, with options of training and of the digest."""

    parts: Any
    batch: int
    epochs: int
    rate: float
    digest: tuple[str, ...]
    columns: tuple[str, ...] = ()
    lengths: str | None = None


TASKS = {
    # Ten records per blob: a chunk of a dataset that is sorted by class needs many blobs.
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
    """PyTorch's loader over local files."""
    files = task.parts.Files(directory)
    order: dict[str, Any] = {"batch_size": task.batch, "shuffle": True, "generator": generator}
    if task.lengths:
        order = {"batch_sampler": speech.LikeLengths(files.seconds, task.batch, generator)}
    return torch.utils.data.DataLoader(files, collate_fn=task.parts.collate, **order)


def substituted(
    task: Task, options: argparse.Namespace, generator: torch.Generator
) -> forebay.DataLoader:
    """forebay's loader, over an origin and a node."""
    dataset = forebay.Dataset(
        options.digest,
        transform=task.parts.decode,
        columns=task.columns,
        cache=options.node,
        storage_options=json.loads(options.origin),
        job=f"seed {options.seed}",
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


class CacheStats:
    """Statistics of the cache in an epoch, from samples of the loader's statistics."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader if isinstance(loader, forebay.DataLoader) else None
        self._shares = list[tuple[float, float]]()

    def sample(self) -> None:
        if self._loader is not None:
            stats = self._loader.stats()
            self._shares.append((stats["pinned_share"], stats["drawable_share"]))

    def summary(self) -> dict[str, Any]:
        if self._loader is None:
            return {}
        stats = self._loader.stats()
        kept = ("items", "hit_share", "origin_bytes", "stall_seconds", "shuffle_quality", "probes")
        pinned, drawable = (sum(values) / len(values) for values in zip(*self._shares, strict=True))
        shares = {"pinned_share": pinned, "drawable_share": drawable}
        return {**{key: stats[key] for key in kept}, **shares}


def accuracy(network: nn.Module, test: Iterable[Any]) -> float:
    """Fraction of the test set that the network classifies correctly."""
    network.eval()
    correct = total = 0
    with torch.inference_mode():
        for *inputs, labels in test:
            correct += int((network(*inputs).argmax(1) == labels).sum())
            total += len(labels)
    network.train()
    return correct / total


def train(options: argparse.Namespace) -> None:
    task = TASKS[options.task]
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    network, test = task.parts.Network(), task.parts.test_set(options.directory)
    generator = torch.Generator().manual_seed(options.seed)
    if options.node is None:
        loader = shuffled(task, options.directory, generator)
    else:
        loader = substituted(task, options, generator)
    optimizer = torch.optim.Adam(network.parameters(), lr=task.rate)
    schedule = OneCycleLR(optimizer, task.rate, total_steps=options.epochs * len(loader))
    for epoch in range(options.epochs):
        began, losses, cache = time.process_time(), list[float](), CacheStats(loader)
        padded_frames = frames = 0
        for number, (*inputs, labels) in enumerate(loader):
            loss = cross_entropy(network(*inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            if task.lengths:
                padded_frames += inputs[0].shape[0] * inputs[0].shape[1]
                frames += int(inputs[1].sum())
            if number % SAMPLE_EVERY == 0:
                cache.sample()
        line = {
            "seed": options.seed,
            "epoch": epoch + 1,
            "loss": sum(losses) / len(losses),
            "accuracy": accuracy(network, test),
            "padding": 1 - frames / padded_frames if padded_frames else None,
            "cpu_seconds": time.process_time() - began,
            **cache.summary(),
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
    parser.add_argument("--origin", help="storage options, as JSON")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
