"""The base class of datasets: PyTorch's ``Dataset`` if PyTorch is installed, and their indices."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch.utils.data import Dataset
    from typing_extensions import TypeVar

    #: Type of an item; ``Any`` unless the type checker can tell.
    T_co = TypeVar("T_co", covariant=True, default=Any)
    MapStyle = Dataset
else:
    from typing import Generic, TypeVar

    T_co = TypeVar("T_co", covariant=True)
    try:
        from torch.utils.data import Dataset as MapStyle
    except ImportError:

        class MapStyle(Generic[T_co]):
            """Stands in for PyTorch's class, which has no behaviour of its own either."""


def as_many(index: Any, length: int) -> list[int] | None:
    """The indices of a slice or of several numbers; ``None`` for a single number."""
    if isinstance(index, slice):
        return list(range(*index.indices(length)))
    if hasattr(index, "__index__") and getattr(index, "ndim", 0) == 0:
        return None
    if isinstance(index, Iterable) and not isinstance(index, str | bytes):
        return checked_indices(index, length)
    raise TypeError(f"an index is a whole number, a slice or a list of numbers, not {index!r}")


def checked_index(index: Any, length: int) -> int:
    """An index from 0; negative ones count from the end."""
    item = operator.index(index)
    if not -length <= item < length:
        raise IndexError(f"item {item} of {length}")
    return item % length


def checked_indices(indices: Iterable[Any], length: int) -> list[int]:
    """Indices from 0; negative ones count from the end. Masks are refused."""
    if isinstance(indices, np.ndarray) or hasattr(indices, "numpy"):
        indices = np.asarray(indices).reshape(-1).tolist()
    found = []
    for index in indices:
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise TypeError(f"indices are whole numbers, not {index!r}; of a mask, give nonzero()")
        found.append(checked_index(index, length))
    return found
