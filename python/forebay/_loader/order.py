"""Orders and epochs: in which order items come, and which of them were yielded.

An *order* begins epochs, one after the other. An *epoch* draws batches ahead and hands them to
PyTorch's loader, which prefetches. ``on_yielded`` tells it when the user has a batch: only then its
items count as read (promise 2). All of this is in the main process; workers read what was drawn.
"""

from __future__ import annotations

import operator
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils import data

from forebay._workers.interrupts import defer_interrupts

#: Batches that are requested from the node while another is read. With one alone, the node's device
#: would be idle whenever that one is ready before its turn.
REQUESTED_AHEAD = 2
#: Batches that are drawn at least.
DRAWN_MIN = 1 + REQUESTED_AHEAD


#: Seed of ranks without a generator: all ranks need the same one.
RANKS_SEED = 0

#: The order and the epoch that a thread has begun or continued last.
_thread = threading.local()


class Epoch(ABC):
    """One epoch of one rank."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        #: Batches that were drawn and not yet taken.
        self._drawn: deque[list[int]] = deque()
        #: Batches that were taken and not yet yielded.
        self._taken: deque[list[int]] = deque()
        #: Whether all batches were taken.
        self.is_exhausted = False
        #: Whether the user has seen the end.
        self.has_ended = False

    @abstractmethod
    def fill(self, at_least: int = 0) -> None:
        """Draw ahead. ``at_least`` batches are drawn even if the epoch should wait."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The fields of a checkpoint."""

    def draw(self) -> None:
        """Draw a batch if none is drawn.

        Call this before PyTorch takes one: an interrupt inside PyTorch's generators would end them.
        """
        if not self._drawn:
            self.fill(at_least=1)

    def take(self) -> list[int] | None:
        """The next batch for a worker; ``None`` at the end."""
        self.draw()
        if not self._drawn:
            self.is_exhausted = True
            return None
        with defer_interrupts():
            self._taken.append(self._drawn.popleft())
        return self._taken[-1]

    def batches_to_request(self) -> list[list[int]]:
        """The batches after the next one that are requested from the node in advance."""
        return list(islice(self._drawn, 1, 1 + REQUESTED_AHEAD))

    @property
    def has_taken(self) -> bool:
        """Whether batches were taken and not yet yielded."""
        return len(self._taken) > 0

    def should_wait(self) -> bool:
        """Whether to wait for slower jobs: nothing is drawn, and the next batch is better drawn
        later.
        """
        return False

    def on_waited(self, seconds: float) -> None:
        """The loader has waited for slower jobs."""
        return

    def return_taken(self) -> None:
        """Draw taken batches that did not arrive again: a Ctrl-C has ended the wait for them."""
        while self._taken:
            self.is_exhausted = False
            self._drawn.appendleft(self._taken.pop())

    def on_yielded(self) -> int:
        """The user has the oldest taken batch; returns its number of items."""
        return len(self._taken.popleft())

    def report(self) -> None:
        """Report progress to the node, if there is one."""
        return

    def on_computed(self, took: float, stalled: float) -> None:
        """The last batch took ``took`` seconds, of which the user waited ``stalled`` for it."""
        return

    def counts(self) -> dict[str, int]:
        """Counts of the items that were yielded."""
        return {}


class Order(ABC):
    """Epochs, one after the other."""

    #: The loader's ``order``, as states have it.
    name: str

    def __init__(self, dataset: Any, batch: int, drop_last: bool) -> None:
        self.dataset, self.batch, self.drop_last = dataset, batch, drop_last
        self._current: Epoch | None = None
        self._past_counts: Counter[str] = Counter()

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins with the next epoch; ``state`` has the progress of this one."""
        return {**self.__dict__, "_current": None, "_past_counts": self.counts()}

    @abstractmethod
    def __len__(self) -> int:
        """Items of an epoch of this rank."""

    @abstractmethod
    def _new_epoch(self) -> Epoch:
        """The next epoch, or the one that was loaded."""

    @abstractmethod
    def _idle_state(self) -> dict[str, Any]:
        """The fields of a checkpoint between epochs, or before the first."""

    @abstractmethod
    def load(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue from these states: of all earlier ranks, or of this one."""

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch."""
        return

    def check_foreign_loader(self) -> None:
        """Raise if another loader must not iterate over this order."""
        return

    @property
    def current(self) -> Epoch | None:
        """The epoch that was begun or continued last."""
        return self._current

    @current.setter
    def current(self, epoch: Epoch | None) -> None:
        self._current = epoch
        _thread.last = None if epoch is None else (weakref.ref(self), weakref.ref(epoch))

    @property
    def current_of_thread(self) -> Epoch | None:
        """The same for this thread: several threads may iterate over one loader."""
        order, epoch = getattr(_thread, "last", None) or (lambda: None, lambda: None)
        here: Epoch | None = epoch() if order() is self else None
        return self._current if here is None else here

    def should_wait(self) -> bool:
        """Whether the current epoch should wait for slower jobs."""
        epoch = self.current_of_thread
        return epoch is not None and epoch.should_wait()

    def draw(self) -> None:
        """Draw a batch of the current epoch."""
        if (epoch := self.current_of_thread) is not None:
            epoch.draw()

    def begin(self) -> Epoch:
        """Begin the next epoch."""
        if (last := self.current) is not None:
            self._past_counts.update(last.counts())
        del last
        self.current = None
        self.dataset._settle()
        self.current = epoch = self._new_epoch()
        return epoch

    def state(self) -> dict[str, Any]:
        """The fields of a checkpoint."""
        current = self.current
        if current is None or current.has_ended:
            return self._idle_state()
        return current.state()

    def counts(self) -> Counter[str]:
        """Counts of the items that were yielded in all epochs."""
        current = self.current
        return self._past_counts + Counter(current.counts() if current else {})


class OrderSampler(data.Sampler[int]):
    """The sampler of PyTorch's loader: the items of the current epoch."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        epoch = self._order.current_of_thread
        if epoch is None:  # another loader iterates over this sampler
            self._order.check_foreign_loader()
            epoch = self._order.begin()
        while (batch := epoch.take()) is not None:
            yield from batch

    def set_epoch(self, epoch: int) -> None:
        self._order.set_epoch(epoch)


class DividedSampler(OrderSampler, data.DistributedSampler[int]):
    """The sampler of an order that divides its items among ranks.

    Frameworks replace or wrap the sampler of a loader, unless it is a ``DistributedSampler``: a
    second division would leave items out.
    """


def refuse_division(world: int) -> None:
    """Raise if there are several ranks: another loader would divide a rank's items once more."""
    if world > 1:
        raise RuntimeError(
            f"this loader divides its items among {world} ranks already, and another loader was"
            " made from it, which would divide them again: do not pass it to `prepare` of"
            " Accelerate, and use the loader itself"
        )


def items_of_rank(items: int, world: int, batch: int, drop_last: bool) -> int:
    """Items of an epoch that each rank gets, with those that ranks repeat to be equal."""
    return items // world // batch * batch if drop_last else -(-items // world)


def checked_batch_size(size: Any) -> int:
    """A batch size of at least 1."""
    try:
        size = operator.index(size)
    except TypeError:
        raise TypeError(f"batch_size={size!r}; give a whole number") from None
    if size < 1:
        raise ValueError(f"batch_size={size}; give 1 or more")
    return int(size)


def shared_seed(generator: torch.Generator | None, world: int) -> int:
    """A seed that all ranks have: the first number of the generator, or a fixed one."""
    return RANKS_SEED if generator is None and world > 1 else draw_seed(generator)


def draw_seed(generator: torch.Generator | None) -> int:
    """A number from a generator, or from PyTorch's default one."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
