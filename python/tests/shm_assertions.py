"""Assertions about shared memory: which mapping an address is in, and whether values are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import data

#: Names of the memory that a node, and workers, share with this process.
OF_NODE, OF_WORKERS = "memfd:forebay", "memfd:forebay-batches"


def mapping_of(address: int) -> str:
    """The name of the mapping at an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(word, 16) for word in line.split()[0].split("-"))
        if begin <= address < end:
            return line.split(maxsplit=5)[-1].strip(" /").removesuffix(" (deleted)")
    return "not mapped"


class Workers(data.DataLoader[Any]):
    """PyTorch's loader with forebay's worker pool."""

    def _get_iterator(self) -> Any:
        from forebay._workers.pool import SurvivingIterator

        return SurvivingIterator(self, lambda: None, lambda: False, lambda: None)


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, with equal types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.resolve_conj(), other.resolve_conj())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and bool(np.array_equal(one, other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    return bool(one == other)
