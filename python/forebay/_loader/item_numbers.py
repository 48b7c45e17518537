"""One number per item, from a column of the digest or from the user: lengths and weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from forebay._data.dataset import Dataset
from forebay._data.wrap import Source

#: The name of a digest column, or one number per item.
Lengths: TypeAlias = "str | Sequence[float] | torch.Tensor | NDArray[Any]"
Weights: TypeAlias = Lengths


def read_lengths(dataset: Source, lengths: Lengths) -> list[float]:
    """The length of every item."""
    return _numbers(dataset, lengths, "lengths")


def read_weights(dataset: Source, weights: Weights) -> NDArray[np.float64]:
    """The weight of every item, all of them valid."""
    numbers = np.asarray(_numbers(dataset, weights, "weights"), np.float64)
    if len(numbers) != len(dataset):
        raise ValueError(
            f"there are {len(numbers)} weights for {len(dataset)} items; give one for each"
        )
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(wrong):
        raise ValueError(
            f"the weight of item {wrong[0]} is {numbers[wrong[0]]}; weights are finite and at least"
            " 0"
        )
    if not numbers.any():
        raise ValueError("all weights are 0; give at least one above 0")
    return numbers


def _numbers(dataset: Source, given: Lengths, name: str) -> list[float]:
    values: Any = given
    if isinstance(given, str):
        if not isinstance(dataset, Dataset):
            raise ValueError(
                f"{name}={given!r}: a wrapped dataset has no columns; give one number per item"
            )
        values = dataset.column(given)
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}= are not numbers; give the name of a column of numbers, or one number per item"
        ) from None
