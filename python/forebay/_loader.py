"""PyTorch's ``DataLoader``, told what is cached.

All that differs is the sampler, which runs in the main process: ``order="substitute"`` draws unread
items that are resident first (promise 8), ``order="strict"`` is PyTorch's own order. Both tell the
agent ahead what will be read. Workers, collation and everything else are PyTorch's, except that
workers which are killed are replaced (``_workers.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sized
from contextlib import suppress
from itertools import islice
from typing import Any, Literal

import torch
from torch.utils import data

from forebay import _native, _workers
from forebay._dataset import Dataset
from forebay._native import ForebayError, LookAhead


class DataLoader(data.DataLoader[Any]):
    """``torch.utils.data.DataLoader`` over a :class:`forebay.Dataset`.

    Parameters
    ----------
    dataset
        A ``forebay.Dataset``.
    order
        ``"substitute"``, the default when shuffling: a random order that prefers what is cached;
        every item once an epoch. ``"strict"``: the order of PyTorch's own loader with the same
        generator. With a sampler or batch sampler of your own it is always strict.
    options
        Whatever PyTorch's loader takes.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | None = 1,
        shuffle: bool = False,
        *,
        order: Literal["substitute", "strict"] | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(dataset, Dataset):
            raise TypeError(
                "forebay.DataLoader takes a forebay.Dataset; use PyTorch's own for others"
            )
        own = sampler is not None or batch_sampler is not None
        if order not in (None, "substitute", "strict"):
            raise ValueError(f"there is no order {order!r}; there are 'substitute' and 'strict'")
        if order == "substitute" and (own or not shuffle):
            raise ValueError("order='substitute' shuffles: give shuffle=True and no sampler")
        if own:
            # PyTorch refuses what does not go together.
            options.update(sampler=sampler, batch_sampler=batch_sampler, shuffle=shuffle or None)
        elif not shuffle:
            options["sampler"] = _Told(data.SequentialSampler(dataset), dataset)
        elif order == "strict":
            ordinary = data.RandomSampler(dataset, generator=generator)
            options["sampler"] = _Told(ordinary, dataset)
        else:
            options["sampler"] = _Substituting(dataset, batch_size or 1, generator)
        super().__init__(
            dataset,  # type: ignore[arg-type] # map-style by its methods, not by its base
            batch_size=batch_size,
            num_workers=num_workers,
            generator=generator,
            **options,
        )

    def _get_iterator(self) -> Any:
        """What PyTorch's ``__iter__`` calls: its own iterator, or one that survives its workers."""
        if self.num_workers == 0 or not _workers.SUPPORTED:
            return super()._get_iterator()
        dataset: Any = self.dataset
        return _workers.SurvivingIterator(self, dataset.count_worker_restart)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next one is, for samplers whose order depends on it."""
        batches = self.batch_sampler
        for sampler in (self.sampler, batches, getattr(batches, "sampler", None)):
            set_epoch = getattr(sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
                return


class _Substituting(data.Sampler[int]):
    """Items in batches that prefer what is resident.

    An epoch's permutation depends on the generator's first number and on the epoch, so that a job
    that begins at epoch 3 has the permutation of epoch 3.
    """

    def __init__(self, dataset: Dataset, batch: int, generator: torch.Generator | None) -> None:
        self._dataset = dataset
        self._batch = batch
        self._generator = generator
        self._base: int | None = None
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[int]:
        sampler = _native.Sampler(self._dataset._digest, self._seed(), self._batch)
        look_ahead = _look_ahead(self._dataset)
        self._epoch += 1
        while True:
            batch = sampler.draw(self._dataset._reader)
            if not batch:
                return
            _tell(self._dataset, sampler.upcoming(look_ahead.items))
            yield from batch

    def _seed(self) -> int:
        if self._base is None:
            number = torch.empty((), dtype=torch.int64).random_(generator=self._generator)
            self._base = int(number.item())
        # Any odd constant spreads neighbouring epochs over all seeds.
        return (self._base + self._epoch * 0x9E3779B97F4A7C15) % 2**64


class _Told(data.Sampler[int]):
    """PyTorch's own sampler, read some way ahead so that the agent can be told."""

    def __init__(self, sampler: data.Sampler[int], dataset: Dataset) -> None:
        self._sampler = sampler
        self._dataset = dataset

    def __len__(self) -> int:
        assert isinstance(self._sampler, Sized)
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        items = iter(self._sampler)
        ahead: deque[int] = deque()
        look_ahead = _look_ahead(self._dataset)
        while True:
            news = list(islice(items, look_ahead.more(len(ahead))))
            _tell(self._dataset, news)
            ahead.extend(news)
            if not ahead:
                return
            yield ahead.popleft()


def _look_ahead(dataset: Dataset) -> LookAhead:
    node = None
    with suppress(ForebayError):
        node = dataset.stats()["node"]
    return LookAhead(None if node is None else node["capacity_bytes"], dataset.blob_bytes)


def _tell(dataset: Dataset, items: list[int]) -> None:
    """A hint: whoever cannot give it reads all the same, and is told what is wrong."""
    if items:
        with suppress(ForebayError):
            dataset.want(items)
