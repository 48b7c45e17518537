"""``order="deterministic"``: the same order for a seed, whatever the number of ranks and workers.

A step of all ranks takes the next ``world * batch_size`` items of one shuffled order, so that
training on 8 ranks with batches of 32 sees the same items per step as on 1 rank with batches of
256. The order does not depend on the cache. Which items a rank gets is decided in the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from forebay import _native
from forebay._data.wrap import Source
from forebay._loader.checkpoint import int_field
from forebay._loader.item_numbers import Weights, read_weights
from forebay._loader.order import Order, items_of_rank, refuse_division, shared_seed
from forebay._loader.torch_orders import KnownEpoch
from forebay._native import StateError
from forebay._runtime.ranks import Ranks


class Position(NamedTuple):
    """Where an epoch begins or continues."""

    seed: int
    epoch: int
    #: Items that all ranks together have yielded before.
    start: int = 0


class DeterministicEpoch(KnownEpoch):
    """One rank's items of the global order."""

    def __init__(self, order: Deterministic, position: Position, rank: int, world: int) -> None:
        super().__init__(order, 0)
        self._position, self._rank, self._world = position, rank, world
        self._weights = order.weights

    def _list_items(self) -> Sequence[int]:
        seed, epoch, start = self._position
        share: list[int] = _native.global_share(
            len(self._dataset),
            seed,
            epoch,
            self.batch,
            self._rank,
            self._world,
            self._drop_last,
            start,
            self._weights,
        ).tolist()
        return share

    def state(self) -> dict[str, Any]:
        steps = self._yielded * self.batch * self._world
        start = min(self._position.start + steps, len(self._dataset))
        return self._position._replace(start=start)._asdict()


class Deterministic(Order):
    """One shuffled order, divided among ranks step by step."""

    name = "deterministic"

    def __init__(
        self,
        dataset: Source,
        batch: int,
        drop_last: bool,
        ranks: Ranks,
        generator: torch.Generator | None,
        weights: Weights | None,
    ) -> None:
        super().__init__(dataset, batch, drop_last)
        self.weights = None if weights is None else read_weights(dataset, weights)
        self._ranks, self._generator = ranks, generator
        self._seed: int | None = None
        self._epoch = 0
        #: Items of the next epoch that were yielded before it was loaded.
        self._start = 0

    def __len__(self) -> int:
        return items_of_rank(len(self.dataset), self._ranks.world, self.batch, self.drop_last)

    def check_foreign_loader(self) -> None:
        refuse_division(self._ranks.world)

    def set_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._start = epoch, 0

    def _position(self) -> Position:
        if self._seed is None:
            self._seed = shared_seed(self._generator, self._ranks.world)
        return Position(self._seed, self._epoch, self._start)

    def _new_epoch(self) -> DeterministicEpoch:
        rank, world = self._ranks.begin()
        position = self._position()
        self._epoch, self._start = self._epoch + 1, 0
        return DeterministicEpoch(self, position, rank, world)

    def _idle_state(self) -> dict[str, Any]:
        return self._position()._asdict()

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        # All ranks have the same position; the number of ranks may differ now.
        positions = {
            Position(*(int_field(state, name) for name in Position._fields)) for state in states
        }
        if len(positions) != 1:
            raise StateError(
                "the states are not of the same step of one job; give those of one checkpoint"
            )
        (position,) = positions
        if position.start > len(self.dataset):
            raise StateError(
                f"the state is of {position.start} items, more than an epoch has; use another"
                " checkpoint"
            )
        self._seed, self._epoch, self._start = position
        self.current = None
