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

from forebay._data.prefetch import prefetch_window, send_hint
from forebay._data.wrap import Source
from forebay._loader.checkpoint import DAMAGED, int_field, single_state
from forebay._loader.order import DRAWN_MIN, Epoch, Order, draw_seed
from forebay._native import StateError
from forebay._workers.interrupts import defer_interrupts

#: Seed of an epoch's order: the state of the user's generator, or a number.
_Seed = bytes | int


class KnownEpoch(Epoch):
    """Items in an order that is known beforehand; they are announced to the agent in advance."""

    def __init__(self, order: Order, start: int) -> None:
        super().__init__(order.batch)
        self._dataset, self._drop_last = order.dataset, order.drop_last
        #: Batches that were yielded.
        self._yielded = start
        self._items: Iterator[int] | None = None
        #: Items that were announced and not yet drawn.
        self._announced: deque[int] = deque()
        self._window = prefetch_window(order.dataset)

    def fill(self, at_least: int = 0) -> None:
        if self._items is None:
            # Not earlier: PyTorch draws a seed for its workers from the same generator first.
            items = self._list_items()
            end = len(items) - (len(items) % self.batch if self._drop_last else 0)
            self._items = itertools.islice(items, self._yielded * self.batch, end)
        while len(self._drawn) < DRAWN_MIN:
            known = len(self._announced)
            # A batch may be longer than the prefetch window.
            more = max(self._window.more(known), self.batch - known)
            # Added before the hint is sent: a Ctrl-C may interrupt the sending.
            self._announced.extend(itertools.islice(self._items, more))
            send_hint(self._dataset, list(itertools.islice(self._announced, known, None)))
            if not self._announced:
                return
            with defer_interrupts():
                count = min(self.batch, len(self._announced))
                self._drawn.append([self._announced.popleft() for _ in range(count)])

    @abstractmethod
    def _list_items(self) -> Sequence[int]:
        """The items of the epoch."""

    def on_yielded(self) -> int:
        self._yielded += 1
        return super().on_yielded()


class FixedEpoch(KnownEpoch):
    """An epoch of a :class:`FixedOrder`."""

    def __init__(self, order: FixedOrder, start: int, seed: _Seed | None) -> None:
        super().__init__(order, start)
        self._order, self._seed = order, seed

    def _list_items(self) -> Sequence[int]:
        items, self._seed = self._order.items(self._seed)
        return items

    def state(self) -> dict[str, Any]:
        if self._items is None:
            return self._order.state_between(self._yielded, self._seed)
        return {"batch": self.batch, "batches": self._yielded, "generator": self._seed}


class FixedOrder(Order):
    """``order="strict"`` and no shuffling: the order of PyTorch's own loader."""

    def __init__(self, dataset: Source, batch: int, drop_last: bool) -> None:
        super().__init__(dataset, batch, drop_last)
        self._pending: tuple[int, _Seed] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    @abstractmethod
    def items(self, seed: _Seed | None) -> tuple[Sequence[int], _Seed]:
        """The items of the next epoch, or of the epoch of ``seed``; and the seed to repeat them."""

    def state_between(self, batches: int, seed: _Seed | None) -> dict[str, Any]:
        """The fields of a checkpoint while no epoch is under way."""
        return {"batch": self.batch, "batches": batches, "generator": seed}

    def _new_epoch(self) -> FixedEpoch:
        start, seed = self._pending or (0, None)
        self._pending = None
        return FixedEpoch(self, start, seed)

    def _idle_state(self) -> dict[str, Any]:
        return self.state_between(*(self._pending or (0, None)))

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        state = single_state(
            states, f"order={self.name!r} is the same on all ranks; give one state"
        )
        batch, batches = int_field(state, "batch"), int_field(state, "batches")
        if batches and batch != self.batch:
            raise StateError(f"the state is of batch_size={batch}; give batch_size={batch}")
        if batches * self.batch >= len(self) + self.batch:
            raise StateError(
                f"the state is of {batches} batches, more than an epoch has; use another checkpoint"
            )
        seed = state.get("generator")
        if not isinstance(seed, bytes | None):
            seed = int_field(state, "generator")
        self._pending = None if seed is None else (batches, seed)
        self.current = None


class Sequential(FixedOrder):
    """The dataset's own order."""

    name = "sequential"

    def items(self, seed: _Seed | None) -> tuple[Sequence[int], _Seed]:
        return range(len(self.dataset)), 0


class Strict(FixedOrder):
    """The order of PyTorch's own shuffling loader with the same generator."""

    name = "strict"

    def __init__(
        self, dataset: Source, batch: int, drop_last: bool, generator: torch.Generator | None
    ) -> None:
        super().__init__(dataset, batch, drop_last)
        self._generator = generator

    def items(self, seed: _Seed | None) -> tuple[Sequence[int], _Seed]:
        generator = self._generator
        if generator is None:
            # As PyTorch's sampler: a seed from the default generator.
            seed = draw_seed(None) if not isinstance(seed, int) else seed
            generator = torch.Generator()
            generator.manual_seed(seed)
        elif isinstance(seed, bytes):
            restore(generator, seed)
        else:
            seed = snapshot(generator)
        sampler = data.RandomSampler(self.dataset, generator=generator)
        return list(sampler), seed

    def state_between(self, batches: int, seed: _Seed | None) -> dict[str, Any]:
        state = super().state_between(batches, seed)
        if self._generator is not None and seed is None:
            state["next_generator"] = snapshot(self._generator)
        return state

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        had_generator = isinstance(states[0].get("generator"), bytes)
        has_generator = self._generator is not None
        if states[0].get("generator") is not None and had_generator != has_generator:
            remedy = "give generator=" if had_generator else "give no generator="
            raise StateError(f"the state's order came from another kind of generator; {remedy}")
        super().load(states)
        following = states[0].get("next_generator")
        if self._generator is not None and isinstance(following, bytes):
            restore(self._generator, following)


class UserEpoch(Epoch):
    """The indices of a sampler of the user."""

    def __init__(self, order: UserOrder, past: Past) -> None:
        super().__init__(order.batch)
        self._order, self._past = order, past
        self._indices: Iterator[Any] | None = None
        #: The state of the sampler's generator before the epoch.
        self._generator = past.generator
        self._yielded, self._checksum = past.batches, past.indices_checksum

    def fill(self, at_least: int = 0) -> None:
        if self._drawn:
            return
        if self._indices is None:
            # Not earlier: PyTorch draws a seed for its workers from the same generator first.
            self._indices = self._skip_past()
        for index in itertools.islice(self._indices, 1):
            self._drawn.append(list(index) if self._order.is_batched else [index])
            # Invalid indices are for the dataset to report.
            with suppress(TypeError, IndexError):
                indices = [self._order.dataset._index(index) for index in self._drawn[-1]]
                send_hint(self._order.dataset, indices)

    def _skip_past(self) -> Iterator[Any]:
        """The sampler's indices after those that were yielded before the checkpoint."""
        generator = self._order.generator
        if generator is not None and self._generator is not None:
            restore(generator, self._generator)
        elif generator is not None:
            self._generator = snapshot(generator)
        indices: Iterator[Any] = iter(self._order.sampler)
        checksum = 0
        for index in itertools.islice(indices, self._past.batches):
            checksum = update_checksum(checksum, index if self._order.is_batched else [index])
        if checksum != self._past.indices_checksum:
            raise StateError(
                "the sampler does not repeat the order that it had before the checkpoint; give it a"
                " generator, such as SubsetRandomSampler(indices, generator=torch.Generator())"
            )
        return indices

    def on_yielded(self) -> int:
        self._yielded += 1
        self._checksum = update_checksum(self._checksum, self._taken[0])
        return super().on_yielded()

    def state(self) -> dict[str, Any]:
        if self._indices is None:
            return self._order.state_between(self._past)
        return Past(self._yielded, self._checksum, self._generator)._asdict()


class Past(NamedTuple):
    """Progress of a user's sampler before a checkpoint."""

    batches: int = 0
    #: Checksum of the indices of these batches.
    indices_checksum: int = 0
    #: The state of the sampler's generator before the epoch, if it has one.
    generator: bytes | None = None


class UserOrder(Order):
    """The order of a sampler or batch sampler of the user.

    It must repeat its order to be resumed. A sampler with a generator, as PyTorch's own have, is
    set back.
    """

    name = "sampler"

    def __init__(self, dataset: Any, sampler: Any, is_batched: bool) -> None:
        super().__init__(dataset, 1, drop_last=False)
        self.sampler, self.is_batched = sampler, is_batched
        of_items = getattr(sampler, "sampler", sampler)
        found = getattr(of_items, "generator", None)
        self.generator = found if isinstance(found, torch.Generator) else None
        self._past = Past()

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        """Batches of indices, or indices, for PyTorch's iterators."""
        epoch = self.current_of_thread
        assert epoch is not None
        while (batch := epoch.take()) is not None:
            yield batch if self.is_batched else batch[0]

    def _new_epoch(self) -> UserEpoch:
        past, self._past = self._past, Past()
        return UserEpoch(self, past)

    def state_between(self, past: Past) -> dict[str, Any]:
        """The fields of a checkpoint while no epoch is under way."""
        state = past._asdict()
        if self.generator is not None and past.generator is None:
            state["next_generator"] = snapshot(self.generator)
        return state

    def _idle_state(self) -> dict[str, Any]:
        return self.state_between(self._past)

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        state = single_state(
            states, "a sampler continues from the state of its own rank; give one state"
        )
        batches, checksum = int_field(state, "batches"), int_field(state, "indices_checksum")
        past = Past(batches, checksum, state.get("generator"))
        if not isinstance(past.generator, bytes | None):
            raise StateError(DAMAGED)
        if past.batches > _length(self.sampler, otherwise=past.batches):
            raise StateError(
                f"the state is of {past.batches} batches, which the sampler does not have; give the"
                " same sampler"
            )
        following = state.get("next_generator")
        if self.generator is not None and isinstance(following, bytes):
            restore(self.generator, following)
        self._past = past
        self.current = None


def update_checksum(checksum: int, batch: Any) -> int:
    """The checksum of a sampler's indices, with one more batch."""
    return zlib.crc32(repr(list(batch)).encode(), checksum)


def _length(sampler: Any, otherwise: int) -> int:
    """The length of a sampler, if it has one."""
    with suppress(TypeError, NotImplementedError):
        return len(sampler)
    return otherwise


def snapshot(generator: torch.Generator) -> bytes:
    """The state of a generator."""
    return bytes(generator.get_state().numpy().tobytes())


def restore(generator: torch.Generator, state: bytes) -> None:
    """Set the state of a generator."""
    try:
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    except (RuntimeError, ValueError, TypeError) as problem:
        raise StateError(
            f"the generator's state cannot be used: {problem}; use another checkpoint"
        ) from None
