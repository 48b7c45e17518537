"""``forebay.Mixture``: several datasets in fixed proportions.

The order of its items is in ``forebay._loader.mixture_order``.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, overload

from forebay._data.dataset import Dataset, ProbeIndex
from forebay._data.map_style import MapStyle, T_co, as_many
from forebay._data.short_stats import ShortStats, dataset_line
from forebay._native import ItemMap

_USAGE = "a mixture consists of forebay.Datasets and weights: Mixture([(a, 0.7), (b, 0.3)])"


class Mixture(MapStyle[T_co]):
    """Items of several datasets in fixed proportions, for a shuffling ``forebay.DataLoader``.

    Parameters
    ----------
    parts
        Datasets, or parts of datasets, and their weights: ``[(a, 0.7), (b, 0.3)]``.

    Notes
    -----
    The proportions hold in every batch. An epoch ends when the next item is due from a dataset that
    is used up: no item is given twice, that dataset is given whole, and the others in proportion to
    their weights. The next epoch begins with all items again. Indices, as other loaders use them,
    count through one dataset after the other, regardless of weights.

    Examples
    --------
    >>> mixture = forebay.Mixture([(dataset, 0.75), (another, 0.25)])
    >>> loader = forebay.DataLoader(mixture, batch_size=8, shuffle=True, collate_fn=list)
    >>> len(next(iter(loader)))
    8
    """

    def __init__(self, parts: Iterable[tuple[Dataset[T_co], float]]) -> None:
        pairs = [_checked(part) for part in parts]
        if not pairs:
            raise TypeError(_USAGE)
        for number, (part, weight) in enumerate(pairs):
            if len(part) == 0:
                raise ValueError(f"part {number} of the mixture, {part!r}, is empty; leave it out")
            if not _is_weight(weight):
                raise ValueError(
                    f"part {number} of the mixture has the weight {weight!r}; give a number above 0"
                )
        total = sum(weight for _, weight in pairs)
        if not _is_weight(total):
            raise ValueError("the weights of the mixture are too large to be added up")
        self._parts = [part for part, _ in pairs]
        self._weights = [weight / total for _, weight in pairs]
        #: The index of each part's first item, and the end of the last part.
        self._starts = [0, *accumulate(len(part) for part in self._parts)]
        #: Items that loaders have yielded.
        self._items_yielded = 0

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice | Iterable[int]) -> list[T_co]: ...
    def __getitem__(self, index: Any) -> Any:
        many = as_many(index, len(self))
        if many is not None:
            return self.__getitems__(many)
        part, item = self._locate(index)
        return self._parts[part][item]

    def __repr__(self) -> str:
        pairs = zip(self._parts, self._weights, strict=True)
        parts = ", ".join(f"({part!r}, {weight:.4g})" for part, weight in pairs)
        return f"forebay.Mixture([{parts}])"

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        """The items of a batch: one request per part, and one more for a part's probe items."""
        requests = self._requests(indices)
        found = {
            target: iter(self._parts[target[0]].__getitems__(items))
            for target, items in requests.items()
        }
        return [next(found[self._target(index)]) for index in indices]

    def skipped(self) -> dict[str, Any]:
        """Items that were left out with ``on_error="skip"``.

        Returns
        -------
        dict
            As :meth:`forebay.Dataset.skipped`; items are indices of the mixture.
        """
        found = [part.skipped() for part in self._parts]
        items = [
            start + item
            for start, one in zip(self._starts, found, strict=False)
            for item in one["items"]
        ]
        return {"count": sum(one["count"] for one in found), "items": items}

    def stats(self) -> dict[str, dict[str, int] | None]:
        """Counters of the node, and the sums of all parts' agents and loaders.

        Returns
        -------
        dict
            As :meth:`forebay.Dataset.stats`.
        """
        found = [part.stats() for part in self._parts]
        total: dict[str, dict[str, int] | None] = {"node": found[0]["node"]}
        for component in ("agent", "loader"):
            sums = Counter[str]()
            for one in found:
                sums.update(one[component] or {})
            total[component] = dict(sums)
        return ShortStats(total, dataset_line)

    # Below: for forebay's loaders.

    @property
    def _id(self) -> str:
        """A hash of the parts' ids and weights."""
        parts = [
            (part._id, weight) for part, weight in zip(self._parts, self._weights, strict=True)
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    @property
    def _layout(self) -> ItemMap:
        raise TypeError("a mixture is drawn from its parts; use forebay.DataLoader")

    @property
    def _has_node(self) -> bool:
        """Whether a node is configured."""
        return self._parts[0]._has_node

    @property
    def _on_error(self) -> str:
        """The ``on_error`` of all parts."""
        return self._parts[0]._on_error

    def _set_on_error(self, on_error: str) -> None:
        for part in self._parts:
            part._set_on_error(on_error)

    def _settle(self) -> None:
        """Continue with the parts' digests, where they are complete by now."""
        for part in self._parts:
            part._settle()

    def _missed(self) -> int:
        """Items that were requested from the agents because the node did not have them."""
        return sum(part._missed() for part in self._parts)

    def _count_worker_restart(self) -> None:
        self._parts[0]._count_worker_restart()

    def _request(self, indices: Sequence[int]) -> None:
        """Request a batch from the nodes, without waiting for it."""
        for (part, _), items in self._requests(indices).items():
            self._parts[part]._request(items)

    def _cancel(self, indices: Sequence[int]) -> None:
        """Give up a batch that was requested."""
        for (part, _), items in self._requests(indices).items():
            self._parts[part]._cancel(items)

    def _requests(self, indices: Sequence[int]) -> dict[tuple[int, bool], list[int]]:
        """The items of each part, by part and by whether they are of a probe."""
        requests = defaultdict[tuple[int, bool], list[int]](list)
        for index in indices:
            requests[self._target(index)].append(self._locate(index)[1])
        return requests

    def _target(self, index: int) -> tuple[int, bool]:
        return self._locate(index)[0], isinstance(index, ProbeIndex)

    def _locate(self, index: int) -> tuple[int, int]:
        """The part of an index, and the item in it."""
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        part = bisect_right(self._starts, index) - 1
        return part, shifted(index, -self._starts[part])


def shifted(index: int, by: int) -> int:
    """An index plus ``by``; a ``ProbeIndex`` remains one."""
    return ProbeIndex(index + by) if isinstance(index, ProbeIndex) else index + by


def _checked(part: Any) -> tuple[Dataset[Any], Any]:
    """A dataset and its unchecked weight."""
    if not isinstance(part, Sequence) or len(part) != 2 or not isinstance(part[0], Dataset):
        raise TypeError(_USAGE)
    return part[0], part[1]


def _is_weight(weight: Any) -> bool:
    try:
        return math.isfinite(weight) and weight > 0
    except (TypeError, OverflowError):
        return False
