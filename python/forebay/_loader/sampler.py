"""``forebay.Sampler``: the substitute order for other loaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch.utils import data

from forebay._data.dataset import Dataset
from forebay._loader.item_numbers import Lengths
from forebay._loader.order import checked_batch_size
from forebay._loader.substitute import Substitute
from forebay._native import StateError
from forebay._runtime.ranks import Ranks


class Sampler(data.Sampler[int]):
    """Items of a :class:`forebay.Dataset` in an order that takes cached items first.

    For loaders other than ``forebay.DataLoader``. Such a loader does not say which items its user
    has. Items count as read when they are drawn, and there is no state to resume from. Loaders that
    ask for one, such as torchdata's ``StatefulDataLoader``, get ``forebay.StateError``.

    Parameters
    ----------
    dataset
        The dataset to read.
    batch_size
        Number of items that the loader puts into a batch.
    generator
        Source of the order's seed; the same on all ranks.
    drop_last
        Only full batches, the same number on all ranks.
    lengths, rank, world_size, gpus
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
        gpus: int | None = None,
    ) -> None:
        batch_size = checked_batch_size(batch_size)
        ranks = Ranks(rank, world_size, gpus)
        self._order = Substitute(dataset, batch_size, drop_last, ranks, generator, lengths)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch.

        Parameters
        ----------
        epoch
            Number of the epoch, from 0; the order depends on it.
        """
        self._order.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        epoch = self._order.begin()
        while (batch := epoch.take()) is not None:
            yield from batch
            epoch.on_yielded()
            epoch.report()
        epoch.has_ended = True

    def state_dict(self) -> NoReturn:
        """Raise ``StateError``: there is no state.

        A loader that skips the number of items that were yielded would skip other items: the order
        depends on the cache and does not repeat.

        Raises
        ------
        StateError
            Always.
        """
        raise StateError(
            "forebay.Sampler has no state: resume with forebay.DataLoader, give torchdata's"
            " StatefulDataLoader a forebay.IterableDataset, or use torch.utils.data.DataLoader"
        )

    def load_state_dict(self, state: Any) -> NoReturn:
        """Raise ``StateError``: there is no state.

        Parameters
        ----------
        state
            Ignored.

        Raises
        ------
        StateError
            Always.
        """
        self.state_dict()
