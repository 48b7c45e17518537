"""Columns of a digest: one value per item.

Numbers are kept in an array, which forked workers share. Object names are read from the digest one
by one, because a list of all names would be copied into each worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forebay._native import Digest

#: The column that every digest has: the name of an item's object below the origin's URL.
OBJECT = "object"


def read_column(digest: Digest, name: str) -> Sequence[Any]:
    """The values of a column, by item.

    Raises
    ------
    KeyError
        The digest has no such column.
    """
    if name == OBJECT and name not in digest.columns:
        return _ObjectNames(digest)
    if name not in digest.columns:
        names = ", ".join([*digest.columns, OBJECT])
        raise KeyError(
            f"the digest has no column `{name}`; it has {names}; add columns with"
            " `forebay digest build URL -o x.digest --columns table.csv`"
        )
    values = digest.column(name)
    if any(value is None or isinstance(value, str) for value in values):
        return values
    return _Numbers(np.asarray(values))


class _Numbers(Sequence[Any]):
    """An array that gives its elements as Python numbers."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._array[index].tolist()
        return self._array.item(index)

    def __repr__(self) -> str:
        return f"<{len(self)} numbers: {self._array}>"


class _ObjectNames(Sequence[str]):
    """The names of the items' objects, read from the digest on demand."""

    def __init__(self, digest: Digest) -> None:
        self._digest = digest

    def __len__(self) -> int:
        return len(self._digest)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._digest.object(item) for item in range(*index.indices(len(self)))]
        return self._digest.object(range(len(self))[index])
