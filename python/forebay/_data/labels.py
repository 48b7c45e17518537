"""Labels: a class number for each item, from its directory or from a column of the digest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay._data.columns import OBJECT, read_column
from forebay._native import Digest

#: Value of ``labels`` for the first directory of an object's name, as torchvision's
#: ``ImageFolder`` has it.
DIRECTORY = "directory"


class Labels:
    """The class of each item."""

    def __init__(self, digest: Digest, labels: str) -> None:
        values = _directories(digest) if labels == DIRECTORY else _values(digest, labels)
        #: Names of the classes, in order.
        self.classes: tuple[Any, ...] = tuple(sorted(set(values)))
        numbers = {name: number for number, name in enumerate(self.classes)}
        # An array, which forked workers share.
        self._of_items: NDArray[np.int32] = np.fromiter(
            (numbers[value] for value in values), np.int32, len(values)
        )

    def __len__(self) -> int:
        return len(self._of_items)

    def __getitem__(self, item: int) -> int:
        return int(self._of_items[item])


def _directories(digest: Digest) -> list[str]:
    """The first directory of each item's object."""
    found = []
    for name in read_column(digest, OBJECT):
        directory, slash, _ = name.partition("/")
        if not slash:
            raise ValueError(
                f"labels='directory': the object `{name}` is in no directory below"
                f" `{digest.origin}`; give the name of a column of the digest instead, or leave"
                " labels out"
            )
        found.append(directory)
    return found


def _values(digest: Digest, column: str) -> list[Any]:
    """The values of a column; none may be missing."""
    values = list(read_column(digest, column))
    if None in values:
        raise ValueError(
            f"labels={column!r}: item {values.index(None)} has no value; complete the column"
        )
    return values
