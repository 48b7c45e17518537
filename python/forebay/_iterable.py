"""For code that wants an iterable instead of indices: each worker of each rank reads a share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import data

from forebay._dataset import AT_ONCE, Dataset
from forebay._native import StateError
from forebay._orders import number, tell
from forebay._ranks import checked, ranks


class IterableDataset(data.IterableDataset[Any]):
    """The items of a :class:`forebay.Dataset`, each of them once, shared by workers and ranks.

    The order does not depend on what is cached, so prefer ``forebay.DataLoader`` where you can.

    Parameters
    ----------
    dataset
        What to read.
    shuffle
        Whether every epoch has a random order of its own.
    seed
        What that order follows from; the same on all ranks.
    is_even
        Leave out the last items where they do not divide, so that all workers of all ranks yield
        equally many. Otherwise some yield one more.
    rank, world_size
        As for ``forebay.DataLoader``.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        shuffle: bool = False,
        seed: int = 0,
        is_even: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if (rank is None) != (world_size is None):
            raise ValueError("give both rank and world_size, or neither")
        self._dataset, self._shuffle, self._seed, self._is_even = dataset, shuffle, seed, is_even
        self._ranks = ranks() if rank is None or world_size is None else checked(rank, world_size)
        self._epoch = 0
        #: Items that this process has yielded of the epoch, and those to leave out of the next.
        self._done = 0
        self._skip = 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next one is, in the main process and before it begins."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        items = self._share()
        start, self._skip = self._skip, 0
        self._done = start
        for at in range(start, len(items), AT_ONCE):
            tell(self._dataset, items[at + AT_ONCE : at + 2 * AT_ONCE])
            for item in self._dataset.__getitems__(items[at : at + AT_ONCE]):
                self._done += 1
                yield item
        self._done = 0
        self._epoch += 1

    def _share(self) -> list[int]:
        """What this worker of this rank reads."""
        rank, world = self._ranks
        worker = data.get_worker_info()
        at, of = (0, 1) if worker is None else (worker.id, worker.num_workers)
        shards, count = world * of, len(self._dataset)
        if self._shuffle:
            generator = torch.Generator()
            generator.manual_seed((self._seed + self._epoch * 0x9E3779B97F4A7C15) % 2**63)
            items = torch.randperm(count, generator=generator).tolist()
        else:
            items = list(range(count))
        if self._is_even:
            items = items[: count // shards * shards]
        share: list[int] = items[rank * of + at :: shards]
        return share

    def state_dict(self) -> dict[str, Any]:
        """How far this process is: what torchdata's ``StatefulDataLoader`` asks every worker."""
        return {
            "version": 1,
            "dataset": self._dataset.id,
            "epoch": self._epoch,
            "items": self._done or self._skip,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there."""
        if state.get("version") != 1 or state.get("dataset") != self._dataset.id:
            raise StateError("the state is of another dataset or version; begin the epoch anew")
        self._epoch, self._skip = number(dict(state), "epoch"), number(dict(state), "items")
        self._done = 0
