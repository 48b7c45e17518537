"""For code that wants an iterable instead of indices: each worker of each rank reads a share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import data

from forebay._dataset import AT_ONCE, Dataset
from forebay._native import StateError
from forebay._orders import number, tell
from forebay._ranks import checked, ranks

#: Of what ``state_dict`` returns.
STATE_VERSION = 2
#: PyTorch's seeds are not negative.
NO_SEED = -1


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
        self._epochs = _Epochs()
        self._epoch = 0
        #: Items that this process has yielded of the epoch, and those to leave out of the next.
        self._done = 0
        self._skip = 0
        #: Which share of how many the items to leave out are of; any, if there are none.
        self._skipped_of: list[int] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next one is, in the main process and before it begins."""
        self._epoch = epoch
        self._epochs.set(epoch)

    def __iter__(self) -> Iterator[Any]:
        if self._skipped_of is None:
            self._epoch = self._epochs.begin()
        elif self._skipped_of != self._shard():
            raise StateError(
                "the state is of another share of the items: give as many workers as there were"
            )
        self._skipped_of = None
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
        self._epochs.end(self._epoch)

    def _shard(self) -> list[int]:
        """Which share this worker of this rank reads, of how many."""
        rank, world = self._ranks
        worker = data.get_worker_info()
        at, of = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return [rank * of + at, world * of]

    def _share(self) -> list[int]:
        """What this worker of this rank reads."""
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
        """What the order of items follows from, beside the epoch."""
        return [self._shuffle, self._seed, self._is_even]

    def state_dict(self) -> dict[str, Any]:
        """How far this process is: what torchdata's ``StatefulDataLoader`` asks every worker."""
        return {
            "version": STATE_VERSION,
            "dataset": self._dataset.id,
            "order": self._order(),
            "shard": self._shard(),
            "epoch": self._epoch,
            "items": self._done or self._skip,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there."""
        if state.get("version") != STATE_VERSION or state.get("dataset") != self._dataset.id:
            raise StateError("the state is of another dataset or version; begin the epoch anew")
        if state.get("order") != self._order():
            raise StateError("the state is of another shuffle, seed or is_even; give the same")
        shard = state.get("shard")
        if not isinstance(shard, list) or len(shard) != 2:
            raise StateError("the state is damaged; begin the epoch anew")
        self._epoch, self._skip = number(dict(state), "epoch"), number(dict(state), "items")
        self._done, self._skipped_of = 0, shard


class _Epochs:
    """Which epoch it is, in all processes of a job.

    PyTorch starts new workers for every epoch, with a copy of the dataset each, and what these
    count is lost. So the count lies in shared memory. Those of one epoch are known by the seed that
    PyTorch gave them: whichever begins first says which epoch it is, and the others follow it, also
    if it has come to its end by then.
    """

    def __init__(self) -> None:
        #: The seed of the epoch that began last, its number, that of the next, and how often the
        #: user has said which one that is.
        self._shared = torch.tensor([NO_SEED, 0, 0, 0])
        self._shared.share_memory_()  # type: ignore[no-untyped-call]
        #: Epochs that this process has begun with one seed: persistent workers keep it.
        self._began = Counter[tuple[int, int]]()

    def set(self, epoch: int) -> None:
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
        self._began[since] += 1
        return int(self._shared[1]) + self._began[since] - 1

    def end(self, following: int) -> None:
        """This process has come to the end of an epoch."""
        self._shared[2] = max(int(self._shared[2]), following)
