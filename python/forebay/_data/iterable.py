"""``forebay.IterableDataset``: the items of a dataset as an iterable.

Each worker of each rank reads a share of the items. The order does not depend on the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import data

from forebay._data.dataset import Dataset
from forebay._data.parts import ITEMS_PER_REQUEST
from forebay._data.prefetch import send_hint
from forebay._loader.checkpoint import int_field
from forebay._native import StateError
from forebay._runtime.ranks import Ranks

#: Version of the state that ``state_dict`` returns.
STATE_VERSION = 2
#: No epoch has begun; PyTorch's seeds are not negative.
NO_SEED = -1


class IterableDataset(data.IterableDataset[Any]):
    """The items of a :class:`forebay.Dataset`, each once, shared by workers and ranks.

    The order does not depend on the cache: prefer ``forebay.DataLoader`` where possible.

    Parameters
    ----------
    dataset
        The dataset to read.
    shuffle
        Whether every epoch has a random order of its own.
    seed
        Seed of the order; the same on all ranks.
    is_even
        Leave out the last items if they do not divide evenly, so that all workers of all ranks
        yield the same number. Otherwise some yield one item more.
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
        self._dataset, self._shuffle, self._seed, self._is_even = dataset, shuffle, seed, is_even
        self._ranks = Ranks(rank, world_size)
        self._epochs = _EpochCounter()
        self._epoch = 0
        #: Items of the epoch that this process has yielded.
        self._yielded = 0
        #: Items of the next epoch to skip, after ``load_state_dict``.
        self._skip = 0
        #: The shard that the skipped items belong to; ``None`` if nothing was loaded.
        self._skip_shard: list[int] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, in the main process and before it begins.

        Parameters
        ----------
        epoch
            Number of the epoch, from 0; a shuffled order depends on it.
        """
        self._epoch = epoch
        self._epochs.set(epoch)

    def __iter__(self) -> Iterator[Any]:
        if self._skip_shard is None:
            self._epoch = self._epochs.begin()
        elif self._skip_shard != self._shard():
            raise StateError(
                "the state is of another share of the items; use the same number of workers and"
                " ranks"
            )
        self._skip_shard = None
        items = self._share()
        start, self._skip = self._skip, 0
        self._yielded = start
        for at in range(start, len(items), ITEMS_PER_REQUEST):
            following = at + ITEMS_PER_REQUEST
            send_hint(self._dataset, items[following : following + ITEMS_PER_REQUEST])
            for item in self._dataset.__getitems__(items[at:following]):
                self._yielded += 1
                yield item
        self._yielded = 0
        self._epoch += 1
        self._epochs.end(self._epoch)

    def _shard(self) -> list[int]:
        """The number of this worker's share, and the number of shares."""
        rank, world = self._ranks.now
        worker = data.get_worker_info()
        at, of = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return [rank * of + at, world * of]

    def _share(self) -> list[int]:
        """The items of this worker, in order."""
        (at, shards), count = self._shard(), len(self._dataset)
        if self._shuffle:
            generator = torch.Generator()
            generator.manual_seed((self._seed + self._epoch * 0x9E3779B97F4A7C15) % 2**63)
            items = torch.randperm(count, generator=generator).tolist()
        else:
            items = list(range(count))
        if self._is_even:
            items = items[: count // shards * shards]
        share: list[int] = items[at::shards]
        return share

    def _order(self) -> list[Any]:
        """The arguments that determine the order of items, beside the epoch."""
        return [self._shuffle, self._seed, self._is_even]

    def state_dict(self) -> dict[str, Any]:
        """The position of this process in its epoch, as torchdata's ``StatefulDataLoader`` asks.

        Returns
        -------
        dict
            The state of this worker of this rank.
        """
        return {
            "version": STATE_VERSION,
            "dataset": self._dataset._id,
            "order": self._order(),
            "shard": self._shard(),
            "epoch": self._epoch,
            "items": self._yielded or self._skip,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, when the next iteration begins.

        Parameters
        ----------
        state
            What ``state_dict`` returned.

        Raises
        ------
        StateError
            The state is of another dataset, order or version, or is damaged.
        """
        if state.get("version") != STATE_VERSION or state.get("dataset") != self._dataset._id:
            raise StateError("the state is of another dataset or version; begin the epoch again")
        if state.get("order") != self._order():
            raise StateError("the state is of another shuffle, seed or is_even; give the same")
        shard = state.get("shard")
        if not isinstance(shard, list) or len(shard) != 2:
            raise StateError("the state is damaged; begin the epoch again")
        self._epoch, self._skip = int_field(dict(state), "epoch"), int_field(dict(state), "items")
        self._yielded, self._skip_shard = 0, shard


class _EpochCounter:
    """The number of the current epoch, shared by all processes of a job.

    PyTorch starts new workers for every epoch, each with a copy of the dataset whose counts are
    lost. The counter therefore is in shared memory. Workers of one epoch have the same base seed
    from PyTorch. The first of them that begins sets the number of the epoch, and the others take
    it, even if the first has already reached the end.
    """

    def __init__(self) -> None:
        #: Seed of the last epoch that began, its number, the number of the next epoch, and the
        #: number of calls of ``set``.
        self._shared = torch.tensor([NO_SEED, 0, 0, 0])
        self._shared.share_memory_()  # type: ignore[no-untyped-call]
        #: Epochs that this process has begun with one seed: persistent workers keep their seed.
        self._begun = Counter[tuple[int, int]]()

    def set(self, epoch: int) -> None:
        """Set the number of the next epoch."""
        self._shared[2] = epoch
        self._shared[3] += 1
        self._shared[0] = NO_SEED

    def begin(self) -> int:
        """The number of the epoch that this process begins."""
        following = int(self._shared[2])
        worker = data.get_worker_info()
        if worker is None:
            return following
        seed = worker.seed - worker.id
        if self._shared[0] != seed:
            self._shared[1] = following
            self._shared[0] = seed
        since = (seed, int(self._shared[3]))
        self._begun[since] += 1
        return int(self._shared[1]) + self._begun[since] - 1

    def end(self, following: int) -> None:
        """This process has reached the end of an epoch; ``following`` is the next one."""
        self._shared[2] = max(int(self._shared[2]), following)
