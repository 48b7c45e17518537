"""Several datasets as one, in fixed proportions.

Every place of every batch belongs to a dataset: always to the one that is furthest behind its
share. So the proportions hold in every batch, as nearly as whole items allow, and nothing about
them is random. Which of a dataset's items takes the place is for its own order to say.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from forebay._dataset import Dataset, PastCache
from forebay._drawn import Substitute
from forebay._interrupts import held
from forebay._native import Layout, StateError
from forebay._orders import AHEAD_MIN, Epoch, Order, is_number, number

#: What a mixture is made of.
MEANT = "a mixture is of forebay.Datasets: Mixture([(a, 0.7), (b, 0.3)])"


class Mixture:
    """Items of several datasets in fixed proportions, for a shuffling ``forebay.DataLoader``.

    Parameters
    ----------
    parts
        Datasets and their weights: ``[(a, 0.7), (b, 0.3)]``.

    An epoch ends when a place belongs to a dataset of which every item has been given: no item is
    given twice in an epoch, all of that dataset are, and of the others as many as their weights
    say. The next epoch begins all of them anew. Indices, as other loaders use them, go through one
    dataset after the other, and know nothing of weights.

    Examples
    --------
    >>> mixture = forebay.Mixture([(dataset, 0.75), (another, 0.25)])
    >>> loader = forebay.DataLoader(mixture, batch_size=8, shuffle=True, collate_fn=list)
    >>> len(next(iter(loader)))
    8
    """

    def __init__(self, parts: Iterable[tuple[Dataset, float]]) -> None:
        pairs = [checked(part) for part in parts]
        if not pairs:
            raise TypeError(MEANT)
        if any(not is_weight(weight) or len(part) == 0 for part, weight in pairs):
            raise ValueError("every part of a mixture has items, and a weight above 0")
        total = sum(weight for _, weight in pairs)
        if not is_weight(total):
            raise ValueError("the weights of a mixture are too large to be added up")
        self.parts = [part for part, _ in pairs]
        self.weights = [weight / total for _, weight in pairs]
        #: Where each part's items begin among all, and where the last ones end.
        self.starts = [0, *accumulate(len(part) for part in self.parts)]
        #: Items that loaders have given to their users.
        self.given = 0

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, index: int) -> Any:
        part, item = self._place(index)
        return self.parts[part][item]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The items of a batch, in one request to each part, and another for its probes."""
        requests = self._requests(indices)
        found = {
            whose: iter(self.parts[whose[0]].__getitems__(items))
            for whose, items in requests.items()
        }
        return [next(found[self._whose(index)]) for index in indices]

    def ask(self, indices: Sequence[int]) -> None:
        """Have the nodes read the batch that will be asked for next."""
        for (part, _), items in self._requests(indices).items():
            self.parts[part].ask(items)

    def give_up(self, indices: Sequence[int]) -> None:
        """What was asked for so will not be read after all."""
        for (part, _), items in self._requests(indices).items():
            self.parts[part].give_up(items)

    def _requests(self, indices: Sequence[int]) -> dict[tuple[int, bool], list[int]]:
        """Which items are asked of each part, and which of them past the cache."""
        requests = defaultdict[tuple[int, bool], list[int]](list)
        for index in indices:
            requests[self._whose(index)].append(self._place(index)[1])
        return requests

    def _whose(self, index: int) -> tuple[int, bool]:
        return self._place(index)[0], isinstance(index, PastCache)

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        part = bisect_right(self.starts, index) - 1
        return part, moved(index, -self.starts[part])

    @property
    def id(self) -> str:
        """What all who share the mixture agree on."""
        told = [(part.id, weight) for part, weight in zip(self.parts, self.weights, strict=True)]
        return hashlib.sha256(repr(told).encode()).hexdigest()

    @property
    def layout(self) -> Layout:
        """A mixture has none of its own."""
        raise TypeError("a mixture is drawn from its parts")

    @property
    def on_error(self) -> str:
        """What becomes of items that cannot be read: the same for all parts."""
        return self.parts[0].on_error

    @on_error.setter
    def on_error(self, what: str) -> None:
        for part in self.parts:
            part.on_error = what

    def skipped(self) -> dict[str, Any]:
        """As a dataset's; items count through all parts."""
        found = [part.skipped() for part in self.parts]
        items = [
            start + item
            for start, one in zip(self.starts, found, strict=False)
            for item in one["items"]
        ]
        return {"count": sum(one["count"] for one in found), "items": items}

    def stats(self) -> dict[str, dict[str, int] | None]:
        """What has been counted for all parts together; of the node, what it has counted at all."""
        found = [part.stats() for part in self.parts]
        together: dict[str, dict[str, int] | None] = {"node": found[0]["node"]}
        for whose in ("agent", "loader"):
            sums = Counter[str]()
            for one in found:
                sums.update(one[whose] or {})
            together[whose] = dict(sums)
        return together

    @property
    def has_node(self) -> bool:
        """Whether there is to be a node."""
        return self.parts[0].has_node

    def missed(self) -> int:
        """Items that the agents were asked for so far, because the node did not have them."""
        return sum(part.missed() for part in self.parts)

    def count_worker_restart(self) -> None:
        """A loader has replaced its workers, because one of them died."""
        self.parts[0].count_worker_restart()


def checked(part: Any) -> tuple[Dataset, Any]:
    """A dataset and its weight, whatever that is."""
    if not isinstance(part, Sequence) or len(part) != 2 or not isinstance(part[0], Dataset):
        raise TypeError(MEANT)
    return part[0], part[1]


def is_weight(weight: Any) -> bool:
    """Whether shares can be computed from it."""
    try:
        return math.isfinite(weight) and weight > 0
    except (TypeError, OverflowError):
        return False


def moved(item: int, by: int) -> int:
    """An item under another number; what is part of a probe remains so."""
    return PastCache(item + by) if isinstance(item, PastCache) else item + by


class _Turns:
    """Whose place is next: always that of the part which is furthest behind its share."""

    def __init__(self, weights: Sequence[float], drawn: Sequence[int]) -> None:
        self._weights, self.drawn = weights, list(drawn)

    def next(self) -> int:
        place = sum(self.drawn) + 1
        pairs = zip(self._weights, self.drawn, strict=True)
        behind = [weight * place - drawn for weight, drawn in pairs]
        return behind.index(max(behind))


class MixtureEpoch(Epoch):
    """Places, each of which belongs to a part."""

    def __init__(self, order: MixtureOrder, drawn: Sequence[int]) -> None:
        super().__init__(order.batch)
        self._order, self._mixture = order, order.mixture
        self._epochs = [part.begin() for part in order.parts]
        self._turns = _Turns(order.mixture.weights, drawn)
        #: Places that each part has had of what was yielded, and whose the places on their way are.
        self._given = list(drawn)
        self._whose: deque[list[int]] = deque()
        #: A batch that is being drawn, and whose its places are: a Ctrl-C may come in between.
        self._begun: tuple[list[int], list[int]] = ([], [])
        self._is_over = False

    def fill(self, at_least: int = 0) -> None:
        while len(self._ahead) < AHEAD_MIN and not self._is_over:
            with held():
                self._draw()

    def _draw(self) -> None:
        batch, whose = self._begun
        while len(batch) < self.batch:
            part = self._turns.next()
            item = self._epochs[part].take()
            if item is None:
                self._is_over = True
                break
            self._turns.drawn[part] += 1
            batch.append(moved(item[0], self._mixture.starts[part]))
            whose.append(part)
        if batch and (len(batch) == self.batch or not self._order.drop_last):
            self._ahead.append(batch)
            self._whose.append(whose)
        self._begun = ([], [])

    def yielded(self) -> int:
        for part in self._whose.popleft():
            self._epochs[part].yielded()
            self._given[part] += 1
        return super().yielded()

    def report(self) -> None:
        for epoch in self._epochs:
            epoch.report()

    def computed(self, took: float, stalled: float) -> None:
        # For every part it is all of the time: its items of the batch came within that.
        for epoch in self._epochs:
            epoch.computed(took, stalled)

    @property
    def parts(self) -> Sequence[Epoch]:
        """The epoch of each part."""
        return self._epochs

    def state(self) -> dict[str, Any]:
        states = [part.state() for part in self._order.parts]
        return {"batch": self.batch, "drawn": list(self._given), "parts": states}

    def counts(self) -> dict[str, int]:
        total = Counter[str]()
        for epoch in self._epochs:
            total.update(epoch.counts())
        return dict(total)


class MixtureOrder(Order):
    """``order="substitute"`` of a mixture: every part has an order of its own, item by item."""

    name = "mixture"

    def __init__(
        self,
        mixture: Mixture,
        batch: int,
        drop_last: bool,
        ranks: tuple[int, int],
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(mixture, batch, drop_last)
        self.mixture, self._world = mixture, ranks[1]
        self.parts = [Substitute(part, 1, False, ranks, generator) for part in mixture.parts]
        for part in self.parts:
            part.over_ask *= batch
        self._pending: list[int] | None = None
        self._length: int | None = None

    def __len__(self) -> int:
        if self._length is None:
            shares = [-(-len(part) // self._world) for part in self.mixture.parts]
            turns = _Turns(self.mixture.weights, [0] * len(shares))
            while turns.drawn[part := turns.next()] < shares[part]:
                turns.drawn[part] += 1
            self._length = sum(turns.drawn)
        return self._length

    def set_epoch(self, epoch: int) -> None:
        for part in self.parts:
            part.set_epoch(epoch)

    def _next(self) -> MixtureEpoch:
        drawn, self._pending = self._pending or [0] * len(self.parts), None
        return MixtureEpoch(self, drawn)

    def _idle_state(self) -> dict[str, Any]:
        drawn = self._pending or [0] * len(self.parts)
        states = [part._idle_state() for part in self.parts]
        return {"batch": self.batch, "drawn": drawn, "parts": states}

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        count = len(self.parts)
        for state in states:
            if (batch := number(state, "batch")) != self.batch:
                raise StateError(f"the state is of batches of {batch}; give batch_size={batch}")
            for name in ("parts", "drawn"):
                if not isinstance(state.get(name), list) or len(state[name]) != count:
                    raise StateError("the state is of another mixture, or is damaged")
            if not all(map(is_number, state["drawn"])):
                raise StateError("the state is damaged: so many items are given by no mixture")
            if not all(isinstance(part, Mapping) for part in state["parts"]):
                raise StateError("the state is damaged: its parts are none of a mixture")
        for at, order in enumerate(self.parts):
            order.load([dict(state["parts"][at]) for state in states])
        self._pending = [sum(state["drawn"][at] for state in states) for at in range(count)]
        self.current = None
