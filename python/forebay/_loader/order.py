"""In which order items come, and what of it has been given to the user.

An *order* begins epochs, one after the other. An *epoch* draws batches ahead, hands them to
PyTorch's loader, which prefetches, and is told when one of them has been given to the user: only
that counts (promise 2). All of this is in the main process; workers read what was drawn.
"""

from __future__ import annotations

import operator
import threading
import weakref
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import Any, TypeGuard

import torch
from torch.utils import data

from forebay._dataset import Dataset
from forebay._interrupts import held, let_through
from forebay._native import ForebayError, LookAhead, StateError
from forebay._wrap import Wrapped

#: What a loader reads.
Source = Dataset | Wrapped

#: Batches that the node is asked for while another is read: with one alone, its device would have
#: nothing to do whenever that one is ready before its turn.
ASKED_AHEAD = 2
#: Batches that are drawn at least.
AHEAD_MIN = 1 + ASKED_AHEAD


#: The order and the epoch that a thread has begun or gone on with last.
_thread = threading.local()


class Epoch(ABC):
    """One epoch of one rank."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        #: Drawn, and not yet asked for.
        self._ahead: deque[list[int]] = deque()
        #: Asked for, and not yet given to the user.
        self._taken: deque[list[int]] = deque()
        #: Everything was asked for.
        self.is_exhausted = False
        #: The user has seen the end.
        self.has_ended = False

    @abstractmethod
    def fill(self, at_least: int = 0) -> None:
        """Draw ahead, if there is anything left; ``at_least`` so many, even if there is a reason
        to draw later.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""

    def draw(self) -> None:
        """Have a batch drawn, if there is another. Whoever has done this before PyTorch asks for
        it is not interrupted inside of its generators, which would end with that.
        """
        if not self._ahead:
            self.fill(at_least=1)

    def take(self) -> list[int] | None:
        """The next batch for a worker; ``None`` at the end."""
        self.draw()
        if not self._ahead:
            self.is_exhausted = True
            return None
        with held():
            self._taken.append(self._ahead.popleft())
        return self._taken[-1]

    def after_next(self) -> list[list[int]]:
        """Those that follow the batch that is taken next, as far as the node is asked for them."""
        return list(islice(self._ahead, 1, 1 + ASKED_AHEAD))

    @property
    def is_awaited(self) -> bool:
        """Whether there are batches that were asked for, and not given to the user."""
        return len(self._taken) > 0

    def holds_back(self) -> bool:
        """Whether nothing is drawn, and the next batch is better drawn later: others are behind.
        Whoever has nothing else to do meanwhile waits, reports, and says so.
        """
        return False

    def waited(self, seconds: float) -> None:
        """Others were waited for."""
        return

    def give_back(self) -> None:
        """What was asked for and did not arrive comes again: a Ctrl-C has ended the wait for it."""
        while self._taken:
            self.is_exhausted = False
            self._ahead.appendleft(self._taken.pop())

    def yielded(self) -> int:
        """The user was given the oldest batch; says how many items it has."""
        return len(self._taken.popleft())

    def report(self) -> None:
        """Tell the node how it goes, if there is anyone to tell."""
        return

    def computed(self, took: float, stalled: float) -> None:
        """The batch that was yielded last took so long, of which the user waited ``stalled``."""
        return

    def counts(self) -> dict[str, int]:
        """What became of the items that were yielded."""
        return {}


class Order(ABC):
    """Epochs, one after the other."""

    #: As the loader's ``order``.
    name: str

    def __init__(self, dataset: Any, batch: int, drop_last: bool) -> None:
        self.dataset, self.batch, self.drop_last = dataset, batch, drop_last
        self._current: Epoch | None = None
        self._past: Counter[str] = Counter()

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins the next epoch; how far this one is, ``state`` tells."""
        return {**self.__dict__, "_current": None, "_past": self.counts()}

    @abstractmethod
    def __len__(self) -> int:
        """Items that this rank is given in an epoch."""

    @abstractmethod
    def _next(self) -> Epoch:
        """The epoch that is to begin now."""

    @abstractmethod
    def _idle_state(self) -> dict[str, Any]:
        """What a checkpoint keeps between epochs, or before the first."""

    @abstractmethod
    def load(self, states: Sequence[dict[str, Any]]) -> None:
        """Go on after these states, of all ranks that there were, or of this one."""

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next one is."""
        return

    @property
    def current(self) -> Epoch | None:
        """The epoch that was begun or gone on with last."""
        return self._current

    @current.setter
    def current(self, epoch: Epoch | None) -> None:
        self._current = epoch
        _thread.last = None if epoch is None else (weakref.ref(self), weakref.ref(epoch))

    @property
    def current_here(self) -> Epoch | None:
        """The same in this thread: others may iterate over the same loader."""
        order, epoch = getattr(_thread, "last", None) or (lambda: None, lambda: None)
        here: Epoch | None = epoch() if order() is self else None
        return self._current if here is None else here

    def holds_back(self) -> bool:
        """Whether the current epoch does."""
        epoch = self.current_here
        return epoch is not None and epoch.holds_back()

    def draw(self) -> None:
        """Have the current epoch draw."""
        if (epoch := self.current_here) is not None:
            epoch.draw()

    def begin(self) -> Epoch:
        """Begin the next epoch."""
        if (last := self.current) is not None:
            self._past.update(last.counts())
        del last
        self.current = None
        self.current = epoch = self._next()
        return epoch

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        current = self.current
        if current is None or current.has_ended:
            return self._idle_state()
        return current.state()

    def counts(self) -> Counter[str]:
        """What became of the items that were yielded, in all epochs."""
        current = self.current
        return self._past + Counter(current.counts() if current else {})


class Items(data.Sampler[int]):
    """What PyTorch's loader is given as its sampler: the items of the epoch that is current."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        epoch = self._order.current_here
        if epoch is None:  # somebody else's loader
            epoch = self._order.begin()
        while (batch := epoch.take()) is not None:
            yield from batch

    def set_epoch(self, epoch: int) -> None:
        self._order.set_epoch(epoch)


def checked_size(size: Any) -> int:
    """How many items a batch has, if that makes sense."""
    try:
        size = operator.index(size)
    except TypeError:
        raise TypeError(f"batch_size={size!r}; give a whole number") from None
    if size < 1:
        raise ValueError(f"batch_size={size}; give 1 or more")
    return int(size)


def look_ahead(dataset: Source) -> LookAhead:
    """How far ahead the agent is told."""
    node = None
    with suppress(ForebayError):
        node = dataset.stats()["node"]
    return LookAhead(None if node is None else node["capacity_bytes"], dataset.blob_bytes)


def tell(dataset: Source, items: Sequence[int]) -> None:
    """A hint: whoever cannot give it reads all the same, and is told what is wrong."""
    if items:
        with suppress(ForebayError), let_through():
            dataset.want(items)


def seed_of(generator: torch.Generator | None) -> int:
    """A number from a generator, or from the process's own."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def number(state: dict[str, Any], name: str) -> int:
    """A number of a state."""
    value = state.get(name)
    if not is_number(value):
        raise StateError("the state is not one of forebay.DataLoader's, or is damaged")
    return value


def is_number(value: Any) -> TypeGuard[int]:
    """Whether a state may hold it, and the core count on from there."""
    return isinstance(value, int) and 0 <= value < 1 << 63


def checksum(state: Mapping[str, Any]) -> str:
    """Of all that a state says, so that damage is noticed, whatever it is that was damaged."""
    kept = {name: value for name, value in state.items() if name != "checksum"}
    return blake2b(repr(_in_order(kept)).encode(), digest_size=16).hexdigest()


def _in_order(value: Any) -> Any:
    """The same, however its names were sorted and its sequences kept."""
    if isinstance(value, Mapping):
        return sorted((str(name), _in_order(one)) for name, one in value.items())
    return [_in_order(one) for one in value] if isinstance(value, list | tuple) else value


def only(states: Sequence[dict[str, Any]], otherwise: str) -> dict[str, Any]:
    """The state, if there is one."""
    if len(states) != 1:
        raise StateError(otherwise)
    return states[0]
