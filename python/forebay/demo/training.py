"""One job: a network that learns, and what its epochs cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import forebay
from forebay._dataset import PastCache
from forebay.demo.pictures import SHAPES, SIDE

_RATE = 0.01


@dataclass(frozen=True)
class Epoch:
    """What was seen of one."""

    seconds: float
    #: How much of that was waiting for data.
    waited_seconds: float
    samples: int
    loss: float
    #: On pictures that it was not trained on.
    accuracy: float


class Straight(forebay.Dataset):
    """The same items, each read from the origin whenever it is asked for, a batch at once."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return super().__getitems__([PastCache(index) for index in indices])

    def want(self, items: Sequence[int]) -> None:
        """Nothing is fetched ahead."""


class Network(nn.Sequential):
    """Three convolutions, the strongest answer of each kind, and a choice."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 8), (8, 16), (16, 32)):
            convolution = nn.Conv2d(inputs, outputs, 5, stride=2, padding=2, bias=False)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
        anywhere = nn.AdaptiveMaxPool2d(1)
        super().__init__(*layers, anywhere, nn.Flatten(), nn.Linear(32, len(SHAPES)))


def decoded(item: tuple[bytes, int]) -> tuple[Tensor, int]:
    """A picture's pixels around nought, and what it shows."""
    content, shape = item
    pixels = np.frombuffer(content, dtype=np.uint8).reshape(3, SIDE, SIDE)
    return torch.from_numpy(pixels / np.float32(64) - 2), shape


def epochs(
    loader: forebay.DataLoader,
    test: tuple[Tensor, Tensor],
    count: int,
    seed: int,
    progress: Callable[[int, float], None],
) -> Iterator[Epoch]:
    """Train a network from nothing; ``progress`` is told of every batch, and its loss."""
    torch.manual_seed(seed)
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _RATE, total_steps=count * len(loader)
    )
    for _ in range(count):
        began, before, losses = time.perf_counter(), loader.stats(), list[float]()
        for pictures, shapes in loader:
            loss = cross_entropy(network(pictures), shapes)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            progress(len(losses), losses[-1])
        after, seconds = loader.stats(), time.perf_counter() - began
        yield Epoch(
            seconds=seconds,
            waited_seconds=after["stall_seconds"] - before["stall_seconds"],
            samples=after["items"] - before["items"],
            loss=sum(losses) / len(losses),
            accuracy=_accuracy(network, test),
        )


def _accuracy(network: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    pictures, shapes = test
    network.eval()
    with torch.inference_mode():
        right = (network(pictures).argmax(1) == shapes).float().mean().item()
    network.train()
    return float(right)


def test_set(pictures: Any, shapes: Any) -> tuple[Tensor, Tensor]:
    """What accuracy is measured on."""
    return torch.from_numpy(pictures / np.float32(64) - 2), torch.from_numpy(shapes)
