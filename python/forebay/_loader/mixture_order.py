"""The order of a ``forebay.Mixture``.

Each position of a batch belongs to one dataset: to the one that is furthest behind its weight. The
proportions therefore hold in every batch, to within one item, and are not random. Which item of the
dataset comes is decided by its own substitute order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from forebay._data.mixture import Mixture, shifted
from forebay._loader.checkpoint import int_field, is_valid_int
from forebay._loader.order import DRAWN_MIN, Epoch, Order
from forebay._loader.substitute import Substitute
from forebay._native import StateError
from forebay._runtime.ranks import Ranks
from forebay._workers.interrupts import defer_interrupts


class _Turns:
    """Whose position is next: that of the part which is furthest behind its weight."""

    def __init__(self, weights: Sequence[float], drawn: Sequence[int]) -> None:
        self._weights, self.drawn = weights, list(drawn)

    def next(self) -> int:
        position = sum(self.drawn) + 1
        pairs = zip(self._weights, self.drawn, strict=True)
        behind = [weight * position - drawn for weight, drawn in pairs]
        return behind.index(max(behind))


class MixtureEpoch(Epoch):
    """An epoch of each part, merged by weights."""

    def __init__(self, order: MixtureOrder, drawn: Sequence[int]) -> None:
        super().__init__(order.batch)
        self._order, self._mixture = order, order.mixture
        self._epochs = [part.begin() for part in order.parts]
        self._turns = _Turns(order.mixture._weights, drawn)
        #: Items of each part that were yielded.
        self._yielded = list(drawn)
        #: The part of each item, for batches that were drawn and not yielded.
        self._parts_of: deque[list[int]] = deque()
        #: A batch being drawn, and the parts of its items: a Ctrl-C may come in between.
        self._begun: tuple[list[int], list[int]] = ([], [])
        self._is_over = False

    def fill(self, at_least: int = 0) -> None:
        while len(self._drawn) < DRAWN_MIN and not self._is_over:
            with defer_interrupts():
                self._draw_batch()

    def _draw_batch(self) -> None:
        batch, parts = self._begun
        while len(batch) < self.batch:
            part = self._turns.next()
            item = self._epochs[part].take()
            if item is None:
                self._is_over = True
                break
            self._turns.drawn[part] += 1
            batch.append(shifted(item[0], self._mixture._starts[part]))
            parts.append(part)
        if batch and (len(batch) == self.batch or not self._order.drop_last):
            self._drawn.append(batch)
            self._parts_of.append(parts)
        self._begun = ([], [])

    def on_yielded(self) -> int:
        for part in self._parts_of.popleft():
            self._epochs[part].on_yielded()
            self._yielded[part] += 1
        return super().on_yielded()

    def report(self) -> None:
        for epoch in self._epochs:
            epoch.report()

    def on_computed(self, took: float, stalled: float) -> None:
        # Each part gets the whole time: its items of the batch came within that.
        for epoch in self._epochs:
            epoch.on_computed(took, stalled)

    @property
    def parts(self) -> Sequence[Epoch]:
        """The epoch of each part."""
        return self._epochs

    def state(self) -> dict[str, Any]:
        states = [part.state() for part in self._order.parts]
        return {"batch": self.batch, "drawn": list(self._yielded), "parts": states}

    def counts(self) -> dict[str, int]:
        total = Counter[str]()
        for epoch in self._epochs:
            total.update(epoch.counts())
        return dict(total)


class MixtureOrder(Order):
    """``order="substitute"`` of a mixture: one substitute order per part, item by item."""

    name = "mixture"

    def __init__(
        self,
        mixture: Mixture,
        batch: int,
        drop_last: bool,
        ranks: Ranks,
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(mixture, batch, drop_last)
        self.mixture, self._ranks = mixture, ranks
        self.parts = [Substitute(part, 1, False, ranks, generator) for part in mixture._parts]
        for part in self.parts:
            part.over_ask *= batch
        self._pending: list[int] | None = None
        self._length: int | None = None

    def check_foreign_loader(self) -> None:
        self.parts[0].check_foreign_loader()

    def __len__(self) -> int:
        if self._length is None:
            shares = [-(-len(part) // self._ranks.world) for part in self.mixture._parts]
            turns = _Turns(self.mixture._weights, [0] * len(shares))
            while turns.drawn[part := turns.next()] < shares[part]:
                turns.drawn[part] += 1
            self._length = sum(turns.drawn)
        return self._length

    def set_epoch(self, epoch: int) -> None:
        for part in self.parts:
            part.set_epoch(epoch)

    def _new_epoch(self) -> MixtureEpoch:
        drawn, self._pending = self._pending or [0] * len(self.parts), None
        return MixtureEpoch(self, drawn)

    def _idle_state(self) -> dict[str, Any]:
        drawn = self._pending or [0] * len(self.parts)
        states = [part._idle_state() for part in self.parts]
        return {"batch": self.batch, "drawn": drawn, "parts": states}

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        count = len(self.parts)
        for state in states:
            if (batch := int_field(state, "batch")) != self.batch:
                raise StateError(f"the state is of batch_size={batch}; give batch_size={batch}")
            for name in ("parts", "drawn"):
                if not isinstance(state.get(name), list) or len(state[name]) != count:
                    raise StateError("the state is of another mixture, or is damaged")
            if not all(map(is_valid_int, state["drawn"])):
                raise StateError("the state is damaged: a number of items is out of range")
            if not all(isinstance(part, Mapping) for part in state["parts"]):
                raise StateError("the state is damaged: the state of a part is missing")
        for at, order in enumerate(self.parts):
            order.load([dict(state["parts"][at]) for state in states])
        self._pending = [sum(state["drawn"][at] for state in states) for at in range(count)]
        self.current = None
