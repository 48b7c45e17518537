"""Our order for anybody's loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch.utils import data

from forebay._dataset import Dataset
from forebay._drawn import Lengths, Substitute
from forebay._native import StateError
from forebay._orders import checked_size
from forebay._ranks import checked, ranks


class Sampler(data.Sampler[int]):
    """Items of a :class:`forebay.Dataset` in an order that prefers what is cached.

    For loaders other than ``forebay.DataLoader``. Such a loader does not say what its user has been
    given: an item counts as read when it is drawn, and there is no state to resume from. Loaders
    that want one, such as torchdata's ``StatefulDataLoader``, are refused.

    Parameters
    ----------
    dataset
        What is read.
    batch_size
        How many items the loader puts into a batch.
    generator
        What the order follows from; the same on all ranks.
    drop_last
        Only full batches, equally many on all ranks.
    lengths, rank, world_size
        As for ``forebay.DataLoader``.

    Examples
    --------
    >>> sampler = forebay.Sampler(dataset, batch_size=32)
    >>> loader = torch.utils.data.DataLoader(
    ...     dataset, batch_size=32, sampler=sampler, collate_fn=list
    ... )
    >>> sum(len(batch) for batch in loader)
    203
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        *,
        generator: torch.Generator | None = None,
        drop_last: bool = False,
        lengths: Lengths | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if (rank is None) != (world_size is None):
            raise ValueError("give both rank and world_size, or neither")
        batch_size = checked_size(batch_size)
        of_world = ranks() if rank is None or world_size is None else checked(rank, world_size)
        self._order = Substitute(dataset, batch_size, drop_last, of_world, generator, lengths)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next one is."""
        self._order.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        epoch = self._order.begin()
        while (batch := epoch.take()) is not None:
            yield from batch
            epoch.yielded()
            epoch.report()
        epoch.has_ended = True

    def state_dict(self) -> NoReturn:
        """There is none. A loader that leaves out as many items as were given would leave out
        others: the order depends on what is cached, and is not the same twice.
        """
        raise StateError(
            "forebay.Sampler has no state: resume with forebay.DataLoader, or give torchdata's"
            " StatefulDataLoader a forebay.IterableDataset; torch.utils.data.DataLoader asks for"
            " none"
        )

    def load_state_dict(self, state: Any) -> NoReturn:
        """Nor can one be gone on from."""
        self.state_dict()
