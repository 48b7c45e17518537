"""Pictures to learn from: each shows one of six bright shapes, at a random position.

They are generated from a seed, so that the demo needs no data. Size, position, colours and noise
vary, so that neither a single pixel nor a mean reveals the shape.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SIDE = 64
SHAPES = ("disc", "ring", "square", "frame", "cross", "diamond")
#: Size of an item: three planes of bytes.
ITEM_BYTES = 3 * SIDE * SIDE
_BRIGHT, _DARK, _NOISE = (130, 255), (0, 110), 20.0
#: Pictures that are generated at a time, to bound memory.
_CHUNK = 250


def generate(count: int, seed: int) -> tuple[Array, Array]:
    """``count`` pictures, and the shape of each."""
    random = np.random.default_rng(seed)
    labels = random.integers(len(SHAPES), size=count)
    pictures = [_pictures(labels[at : at + _CHUNK], random) for at in range(0, count, _CHUNK)]
    return np.concatenate(pictures), labels


def write(directory: Path, columns: Path, count: int, seed: int) -> None:
    """Write one file per picture, and a table of their shapes."""
    directory.mkdir(parents=True)
    pictures, labels = generate(count, seed)
    rows = ["object,shape"]
    for number, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        name = f"{number:05}.rgb"
        (directory / name).write_bytes(picture.tobytes())
        rows.append(f"{name},{label}")
    columns.write_text("\n".join(rows) + "\n")


def _pictures(labels: Array, random: np.random.Generator) -> Array:
    count = len(labels)
    size = random.uniform(8, 20, (count, 1, 1))
    middle = random.uniform(20, SIDE - 20, (2, count, 1, 1))
    rows, columns = np.mgrid[0:SIDE, 0:SIDE][:, None]
    down, across = np.abs(rows - middle[0]) / size, np.abs(columns - middle[1]) / size
    round_, square = np.hypot(down, across), np.maximum(down, across)
    shapes = np.stack(
        [
            round_ < 1,
            (round_ < 1) & (round_ > 0.6),
            square < 0.9,
            (square < 0.9) & (square > 0.5),
            (square < 1) & (np.minimum(down, across) < 0.3),
            down + across < 1.2,
        ]
    )
    shown = shapes[labels, np.arange(count)][:, None]
    bright, dark = (random.uniform(*range_, (count, 3, 1, 1)) for range_ in (_BRIGHT, _DARK))
    noise = random.normal(0, _NOISE, (count, 3, SIDE, SIDE))
    return np.clip(np.where(shown, bright, dark) + noise, 0, 255).astype(np.uint8)
