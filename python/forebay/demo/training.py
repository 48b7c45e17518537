"""One job of the demo: a network that is trained, and the cost of its epochs."""

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
from forebay._data.dataset import ProbeIndex
from forebay.demo.pictures import SHAPES, SIDE

_RATE = 0.01


@dataclass(frozen=True)
class Epoch:
    """Measurements of one epoch."""

    seconds: float
    #: Part of ``seconds`` spent waiting for data.
    stall_seconds: float
    samples: int
    loss: float
    #: On pictures that the network was not trained on.
    accuracy: float


class UncachedDataset(forebay.Dataset):
    """The same items, always read from the origin, one batch at a time."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return super().__getitems__([ProbeIndex(index) for index in indices])

    def _prefetch_hint(self, items: Sequence[int]) -> None:
        """Do nothing: nothing is fetched ahead."""


class Network(nn.Sequential):
    """Three convolutions, a maximum over all positions, and a linear layer."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 8), (8, 16), (16, 32)):
            convolution = nn.Conv2d(inputs, outputs, 5, stride=2, padding=2, bias=False)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
        maximum = nn.AdaptiveMaxPool2d(1)
        super().__init__(*layers, maximum, nn.Flatten(), nn.Linear(32, len(SHAPES)))


def decode(item: tuple[bytes, int]) -> tuple[Tensor, int]:
    """The pixels of a picture, centred at 0, and its shape."""
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
    """Train a new network; ``progress`` is called with the number and loss of each batch."""
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
            stall_seconds=after["stall_seconds"] - before["stall_seconds"],
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
    """Pictures and shapes as tensors, to measure accuracy on."""
    return torch.from_numpy(pictures / np.float32(64) - 2), torch.from_numpy(shapes)
