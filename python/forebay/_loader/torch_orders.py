"""Orders that are known beforehand: PyTorch's own, and those of the user's samplers."""

from __future__ import annotations

import itertools
import zlib
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch.utils import data

from forebay._interrupts import held
from forebay._native import StateError
from forebay._orders import (
    AHEAD_MIN,
    Epoch,
    Order,
    Source,
    look_ahead,
    number,
    only,
    seed_of,
    tell,
)


class GivenEpoch(Epoch):
    """Items in an order that is known beforehand; the agent is told some way ahead."""

    def __init__(self, order: Given, start: int, seen: bytes | int | None) -> None:
        super().__init__(order.batch)
        self._order, self._dataset = order, order.dataset
        #: Batches that were yielded.
        self._done = start
        self._seen = seen
        self._items: Iterator[int] | None = None
        self._told: deque[int] = deque()
        self._look_ahead = look_ahead(order.dataset)

    def fill(self, at_least: int = 0) -> None:
        if self._items is None:
            # Not sooner: PyTorch draws a number for its workers from the same generator first.
            items, self._seen = self._order.items(self._seen)
            end = len(items) - (len(items) % self.batch if self._order.drop_last else 0)
            self._items = itertools.islice(items, self._done * self.batch, end)
        while len(self._ahead) < AHEAD_MIN:
            known = len(self._told)
            # A batch may be longer than the agent is told of.
            more = max(self._look_ahead.more(known), self.batch - known)
            # They are kept before they are told of: a Ctrl-C may end the telling.
            self._told.extend(itertools.islice(self._items, more))
            tell(self._dataset, list(itertools.islice(self._told, known, None)))
            if not self._told:
                return
            with held():
                count = min(self.batch, len(self._told))
                self._ahead.append([self._told.popleft() for _ in range(count)])

    def yielded(self) -> int:
        self._done += 1
        return super().yielded()

    def state(self) -> dict[str, Any]:
        if self._items is None:
            return self._order.between(self._done, self._seen)
        return {"batch": self.batch, "batches": self._done, "seen": self._seen}


class Given(Order):
    """``order="strict"``, and no shuffling: what PyTorch's own loader would yield."""

    def __init__(self, dataset: Source, batch: int, drop_last: bool) -> None:
        super().__init__(dataset, batch, drop_last)
        self._pending: tuple[int, bytes | int] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    @abstractmethod
    def items(self, seen: bytes | int | None) -> tuple[Sequence[int], bytes | int]:
        """The next epoch's items, or those of an epoch that was seen before; and what to keep to
        see them again.
        """

    def between(self, batches: int, seen: bytes | int | None) -> dict[str, Any]:
        """What a checkpoint keeps when no epoch is under way."""
        return {"batch": self.batch, "batches": batches, "seen": seen}

    def _next(self) -> GivenEpoch:
        start, seen = self._pending or (0, None)
        self._pending = None
        return GivenEpoch(self, start, seen)

    def _idle_state(self) -> dict[str, Any]:
        return self.between(*(self._pending or (0, None)))

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        state = only(states, f"order={self.name!r} is the same on all ranks; give one state")
        batch, batches = number(state, "batch"), number(state, "batches")
        if batches and batch != self.batch:
            raise StateError(f"the state is of batches of {batch}; give batch_size={batch}")
        if batches * self.batch >= len(self) + self.batch:
            raise StateError(f"the state is of {batches} batches, which there are not")
        seen = state.get("seen")
        if not isinstance(seen, bytes | None):
            seen = number(state, "seen")
        self._pending = None if seen is None else (batches, seen)
        self.current = None


class Sequential(Given):
    """The dataset's own order."""

    name = "sequential"

    def items(self, seen: bytes | int | None) -> tuple[Sequence[int], bytes | int]:
        return range(len(self.dataset)), 0


class Strict(Given):
    """The order of PyTorch's own shuffling loader with the same generator."""

    name = "strict"

    def __init__(
        self, dataset: Source, batch: int, drop_last: bool, generator: torch.Generator | None
    ) -> None:
        super().__init__(dataset, batch, drop_last)
        self._generator = generator

    def items(self, seen: bytes | int | None) -> tuple[Sequence[int], bytes | int]:
        generator = self._generator
        if generator is None:
            # As PyTorch's sampler does it: a seed from the process's own generator.
            seen = seed_of(None) if not isinstance(seen, int) else seen
            generator = torch.Generator()
            generator.manual_seed(seen)
        elif isinstance(seen, bytes):
            restore(generator, seen)
        else:
            seen = snapshot(generator)
        sampler = data.RandomSampler(self.dataset, generator=generator)
        return list(sampler), seen

    def between(self, batches: int, seen: bytes | int | None) -> dict[str, Any]:
        kept = super().between(batches, seen)
        if self._generator is not None and seen is None:
            kept["after"] = snapshot(self._generator)
        return kept

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        had_one = isinstance(states[0].get("seen"), bytes)
        if states[0].get("seen") is not None and had_one != (self._generator is not None):
            fix = "give generator=" if had_one else "give no generator="
            raise StateError(f"the state's order came from another kind of generator; {fix}")
        super().load(states)
        after = states[0].get("after")
        if self._generator is not None and isinstance(after, bytes):
            restore(self._generator, after)


class OwnEpoch(Epoch):
    """What a sampler of the user's own says, whatever that is."""

    def __init__(self, order: Own, past: Past) -> None:
        super().__init__(order.batch)
        self._order, self._past = order, past
        self._indices: Iterator[Any] | None = None
        #: What the sampler's generator was before it drew from it.
        self._seen = past.seen
        self._done, self._said = past.batches, past.said

    def fill(self, at_least: int = 0) -> None:
        if self._ahead:
            return
        if self._indices is None:
            # Not sooner: PyTorch draws a number for its workers from the same generator first.
            self._indices = self._begun()
        for index in itertools.islice(self._indices, 1):
            self._ahead.append(list(index) if self._order.is_batched else [index])
            # What is no item is for the dataset to say.
            with suppress(TypeError, IndexError):
                ordinals = [self._order.dataset.ordinal(index) for index in self._ahead[-1]]
                tell(self._order.dataset, ordinals)

    def _begun(self) -> Iterator[Any]:
        """What the sampler says after what was yielded before."""
        generator = self._order.generator
        if generator is not None and self._seen is not None:
            restore(generator, self._seen)
        elif generator is not None:
            self._seen = snapshot(generator)
        indices: Iterator[Any] = iter(self._order.sampler)
        said = 0
        for index in itertools.islice(indices, self._past.batches):
            said = heard(said, index if self._order.is_batched else [index])
        if said != self._past.said:
            raise StateError(
                "the sampler does not say again what it said before the checkpoint: make it do so,"
                " such as with SubsetRandomSampler(indices, generator=torch.Generator())"
            )
        return indices

    def yielded(self) -> int:
        self._done += 1
        self._said = heard(self._said, self._taken[0])
        return super().yielded()

    def state(self) -> dict[str, Any]:
        if self._indices is None:
            return self._order.between(self._past)
        return Past(self._done, self._said, self._seen)._asdict()


class Past(NamedTuple):
    """What a sampler of the user's own has said before the epoch is gone on with."""

    batches: int = 0
    #: A checksum of them,
    said: int = 0
    #: and what the sampler's generator was at first, if it has one.
    seen: bytes | None = None


class Own(Order):
    """A sampler or batch sampler of the user's own. It has to say the same again to be resumed; one
    that has a generator, as PyTorch's own do, is set back.
    """

    name = "own"

    def __init__(self, dataset: Any, sampler: Any, is_batched: bool) -> None:
        super().__init__(dataset, 1, drop_last=False)
        self.sampler, self.is_batched = sampler, is_batched
        of_items = getattr(sampler, "sampler", sampler)
        found = getattr(of_items, "generator", None)
        self.generator = found if isinstance(found, torch.Generator) else None
        self._before = Past()

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        """As PyTorch's iterators take it: batches of indices, or indices."""
        epoch = self.current_here
        assert epoch is not None
        while (batch := epoch.take()) is not None:
            yield batch if self.is_batched else batch[0]

    def _next(self) -> OwnEpoch:
        past, self._before = self._before, Past()
        return OwnEpoch(self, past)

    def between(self, past: Past) -> dict[str, Any]:
        """What a checkpoint keeps when no epoch is under way."""
        kept = past._asdict()
        if self.generator is not None and past.seen is None:
            kept["after"] = snapshot(self.generator)
        return kept

    def _idle_state(self) -> dict[str, Any]:
        return self.between(self._before)

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        state = only(states, "a sampler of one's own goes on from the state of its own rank")
        past = Past(number(state, "batches"), number(state, "said"), state.get("seen"))
        if not isinstance(past.seen, bytes | None):
            raise StateError("the state is not one of forebay.DataLoader's, or is damaged")
        if past.batches > _length(self.sampler, otherwise=past.batches):
            raise StateError(
                f"the state is of {past.batches} batches, which the sampler does not have"
            )
        after = state.get("after")
        if self.generator is not None and isinstance(after, bytes):
            restore(self.generator, after)
        self._before = past
        self.current = None


def heard(said: int, batch: Any) -> int:
    """A checksum of all that a sampler has said, once it has said this as well."""
    return zlib.crc32(repr(list(batch)).encode(), said)


def _length(sampler: Any, otherwise: int) -> int:
    """How long a sampler says that it is, if it does."""
    with suppress(TypeError, NotImplementedError):
        return len(sampler)
    return otherwise


def snapshot(generator: torch.Generator) -> bytes:
    """A generator's state, as bytes."""
    return bytes(generator.get_state().numpy().tobytes())


def restore(generator: torch.Generator, state: bytes) -> None:
    """Sets a generator back."""
    try:
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    except (RuntimeError, ValueError, TypeError) as problem:
        raise StateError(f"the state's generator cannot be used: {problem}") from None
