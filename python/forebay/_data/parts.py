"""Parts of a dataset: ``split``, ``subset``, ``filter`` and ``repeat``.

A part is a dataset of the same job: same digest, same agent, same cache. A loader over it draws
cached items first and takes part in rotation, and reads its own items only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from forebay import _native
from forebay._data.map_style import MapStyle, T_co, as_many, checked_indices

if TYPE_CHECKING:
    from typing_extensions import Self

#: Items per request when several items are read at once.
ITEMS_PER_REQUEST = 64
#: Items that an epoch can have.
ITEMS_MAX = 2**32 - 2


class Divisible(MapStyle[T_co]):
    """A map-style dataset that can be divided into parts."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _item(self, index: int) -> T_co:
        """One item."""

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        """The items of a batch, in one request."""

    @abstractmethod
    def _part(self, indices: NDArray[np.uint32]) -> Self:
        """The dataset of these items."""

    @abstractmethod
    def column(self, name: str) -> Sequence[Any]: ...

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice | Iterable[int]) -> list[T_co]: ...
    def __getitem__(self, index: Any) -> Any:
        many = as_many(index, len(self))
        if many is None:
            return self._item(index)
        return [item for batch in _batches(many) for item in self.__getitems__(batch)]

    def __iter__(self) -> Iterator[T_co]:
        for batch in _batches(range(len(self))):
            yield from self.__getitems__(batch)

    def subset(self, indices: Iterable[int]) -> Self:
        """The items at some indices, as a dataset.

        Parameters
        ----------
        indices
            Indices of items, in any order. An index that occurs several times is read as often in
            every epoch.

        Returns
        -------
        Dataset
            A dataset of the same job; its indices count from 0.

        Examples
        --------
        >>> part = dataset.subset(range(0, len(dataset), 2))
        >>> len(part)
        102
        >>> part[1] == dataset[2]
        True
        """
        chosen = checked_indices(indices, len(self))
        if not chosen:
            raise ValueError("the subset has no items; give at least one index")
        return self._part(np.asarray(chosen, np.uint32))

    def split(self, *fractions: float, seed: int = 0) -> tuple[Self, ...]:
        """Parts at random, such as one for training and one for validation.

        Parameters
        ----------
        fractions
            The share of each part. What they leave is one more part: ``split(0.9)`` has two parts.
        seed
            The same seed gives the same parts.

        Returns
        -------
        tuple of Dataset
            Parts without common items, which together are the whole.

        Raises
        ------
        ValueError
            The fractions add up to more than 1, or a part would be empty.

        Examples
        --------
        >>> train, validation = dataset.split(0.9, seed=1)
        >>> len(train), len(validation)
        (183, 20)
        """
        if not fractions:
            raise ValueError("split() has no fractions; give at least one, such as split(0.9)")
        parts = _native.split(len(self), fractions, seed % 2**64)
        return tuple(map(self._part, parts))

    def filter(self, column: str, keep: Callable[[Any], bool]) -> Self:
        """The items whose value in a column satisfies a condition, as a dataset.

        Parameters
        ----------
        column
            Name of a column of the digest; ``"object"`` is the name of the item's object.
        keep
            Called with the value of each item; whether the item is kept.

        Returns
        -------
        Dataset
            A dataset of the same job.

        Raises
        ------
        KeyError
            The digest has no such column.
        ValueError
            No item is kept.

        Examples
        --------
        >>> len(dataset.filter("label", lambda label: label < 5))
        103
        """
        values = self.column(column)
        kept = [index for index, value in enumerate(values) if keep(value)]
        if not kept:
            raise ValueError(
                f"filter({column!r}): none of {len(self)} items is kept; the first value is"
                f" {values[0]!r}"
            )
        return self._part(np.asarray(kept, np.uint32))

    def repeat(self, counts: int | Sequence[int]) -> Self:
        """The items, each given several times in every epoch.

        Parameters
        ----------
        counts
            How often each item occurs, or one number for all; 0 leaves an item out.

        Returns
        -------
        Dataset
            A dataset of the same job.

        Raises
        ------
        ValueError
            A count is negative, or nothing is left.

        Examples
        --------
        >>> len(dataset.repeat(2))
        406
        """
        times = np.asarray(counts)
        if times.dtype.kind not in "iu":
            raise TypeError(f"counts={counts!r}; give whole numbers")
        if times.ndim and len(times) != len(self):
            raise ValueError(f"there are {len(times)} counts for {len(self)} items; give one each")
        if times.size and int(times.min()) < 0:
            raise ValueError(f"the count {int(times.min())} is negative; give 0 or more")
        total = int(times.sum()) if times.ndim else int(times) * len(self)
        if total > ITEMS_MAX:
            raise ValueError(f"{total} items are too many for one epoch; give smaller counts")
        repeated = np.repeat(np.arange(len(self), dtype=np.uint32), times)
        if not len(repeated):
            raise ValueError("all counts are 0; give at least one above 0")
        return self._part(repeated)


def _batches(indices: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(indices), ITEMS_PER_REQUEST):
        yield indices[start : start + ITEMS_PER_REQUEST]
