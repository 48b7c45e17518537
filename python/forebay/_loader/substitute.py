"""Orders of the node's choosing: substitution, and its replays."""

from __future__ import annotations

import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from forebay import _native
from forebay._dataset import Dataset, PastCache
from forebay._interrupts import held
from forebay._native import Fenced, StateError
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

#: Batches that are drawn before PyTorch asks for them, so that the agent can fetch what is missing.
DRAWN_AHEAD = 4
#: Items of pieces that are on their way which an agent is told of at a time.
LOADING_AT_ONCE = 1024
#: What all ranks begin with if nobody gave them a generator; they have to agree.
SEED_OF_RANKS = 0


#: How long items are: a column of the digest, or a number for each.
Lengths: TypeAlias = "str | Sequence[float] | torch.Tensor | np.ndarray[Any, Any]"


class SubstituteEpoch(Epoch):
    """Batches that prefer what is cached, from the pieces that the node has opened."""

    def __init__(self, order: Drawn, sampler: _native.Sampler) -> None:
        super().__init__(order.batch)
        self._order, self._dataset, self.sampler = order, order.dataset, sampler
        self._look_ahead = look_ahead(order.dataset)
        self._ahead_max = max(AHEAD_MIN, min(DRAWN_AHEAD, self._look_ahead.items // self.batch))
        self._probes = 0
        participation = order.dataset.participation
        number = participation.begin(self, order.dataset.join(*order.ranks))
        self.member = order.member(participation.life)
        with self.lock:
            self.member.begin(number)
        self.report()

    @property
    def lock(self) -> threading.RLock:
        """The order's: it may be another one in a fork."""
        return self._order.lock

    @property
    def _speaks(self) -> bool:
        speaks: bool = self._dataset.participation.is_spoken_for_by(self)
        return speaks

    @property
    def _is_managed(self) -> bool:
        return self._speaks and self.member.is_answered

    def holds_back(self) -> bool:
        with self.lock:
            return not self._ahead and self._is_managed and self._is_better_drawn_later()

    def waited(self, seconds: float) -> None:
        with self.lock:
            self.member.waited(self.sampler, seconds)

    def _is_better_drawn_later(self) -> bool:
        """Another piece may be open then. What is recorded stays what it is."""
        return self._order.chooses and self.member.holds_back(self.sampler)

    def fill(self, at_least: int = 0) -> None:
        with self.lock:
            is_managed = self._is_managed
            while len(self._ahead) < (self._ahead_max if is_managed else AHEAD_MIN):
                if is_managed and len(self._ahead) >= at_least:
                    if self._ahead and self.member.is_short(self.sampler):
                        return  # there is time for another piece to be opened
                    if self._is_better_drawn_later():
                        return
                member = self.member if self._speaks else None
                with held():
                    drawn = self.sampler.draw(self._dataset._reader, member)
                    if drawn is None:
                        return
                    items, missing, is_forced = drawn
                    if is_forced:
                        self._probes += 1
                        items = [PastCache(item) for item in items]
                    self._ahead.append(items)
                if is_managed and not is_forced:
                    tell(self._dataset, missing)
                tell(self._dataset, self.sampler.upcoming(self._look_ahead.items))

    def yielded(self) -> int:
        with self.lock:
            self.sampler.yielded(self.member if self._speaks else None)
        return super().yielded()

    def computed(self, took: float, stalled: float) -> None:
        with self.lock:
            if self._speaks:
                self.sampler.computed(self.member, took, stalled)

    def report(self) -> None:
        with self.lock:
            if not self._speaks:
                return
            before = self.member.reports
            try:
                self.member.report(self.sampler, self._dataset._reader)
            except Fenced:
                self._dataset.participation.fenced()
                raise
            if self.member.reports > before:
                reader = self._dataset._reader
                tell(self._dataset, self.member.needed(self.sampler, reader, LOADING_AT_ONCE))

    def state(self) -> dict[str, Any]:
        with self.lock:
            return self._order.progress(self.sampler)

    def counts(self) -> dict[str, int]:
        with self.lock:
            return {**self.sampler.counts(), "probes": self._probes}

    @property
    def dataset(self) -> Source:
        """What is drawn from."""
        dataset: Source = self._dataset
        return dataset

    def shares(self) -> tuple[float, float]:
        """How much of the dataset is held for good, and is open."""
        with self.lock:
            held, rotating = self.member.open
        share = self._dataset.layout.share
        return share(held), share([*held, *rotating])


class Drawn(Order):
    """What substitution and its replays have in common."""

    #: Whether it depends on what is open which items come next.
    chooses = False

    def __init__(
        self,
        dataset: Source,
        batch: int,
        drop_last: bool,
        ranks: tuple[int, int],
        lengths: Lengths | None,
    ) -> None:
        super().__init__(dataset, batch, drop_last)
        self._lengths = None if lengths is None else numbers(dataset, lengths)
        self.ranks = self._rank, self._world = ranks
        self._local()

    def _local(self) -> None:
        """What every process has of its own."""
        self.layout = self.dataset.layout
        if self._lengths is not None:
            self.layout = self.layout.with_lengths(self._lengths)
        #: What was loaded and is to be gone on with.
        self._pending: _native.Sampler | None = None
        self._member: tuple[int, _native.Member] | None = None
        #: Of the member and of the epochs' samplers: threads may each have an epoch under way.
        self.lock = threading.RLock()
        _of_this_process.add(self)

    def __getstate__(self) -> dict[str, Any]:
        own = ("layout", "_pending", "_member", "lock")
        kept = {name: value for name, value in super().__getstate__().items() if name not in own}
        return {**kept, "state": self._idle_state()}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        state = kept.pop("state")
        self.__dict__.update(kept)
        self._local()
        self.load([state])

    def has_forked(self) -> None:
        """This is a child. What another thread was doing when it was forked nobody will end here,
        nor open its lock.
        """
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:
            self.lock, self._current = threading.RLock(), None

    def member(self, life: int) -> _native.Member:
        """What is reported, and answered; the same for all epochs of one life."""
        if self._member is None or self._member[0] != life:
            batches = -(-len(self) // self.batch)
            self._member = (life, _native.Member(self.layout, life, 1, batches))
        return self._member[1]

    @abstractmethod
    def progress(self, sampler: _native.Sampler) -> dict[str, Any]:
        """What a checkpoint keeps of an epoch."""

    def recording(self) -> bytes:
        """What was yielded of the current epoch, or of the last one."""
        if not isinstance(self.current, SubstituteEpoch):
            raise StateError("nothing has been yielded yet; record an epoch first")
        with self.lock:
            recording = self.current.sampler.recording()
        if recording is None:
            raise StateError(
                "the epoch was resumed, so its beginning is not known; record one that was not"
            )
        return recording


class Substitute(Drawn):
    """``order="substitute"``: every item once an epoch, among all ranks; what is cached first."""

    name = "substitute"
    chooses = True

    def __init__(
        self,
        dataset: Source,
        batch: int,
        drop_last: bool,
        ranks: tuple[int, int],
        generator: torch.Generator | None,
        lengths: Lengths | None = None,
    ) -> None:
        super().__init__(dataset, batch, drop_last, ranks, lengths)
        self._generator = generator
        self._seed: int | None = None
        self._epoch = 0
        #: Candidates for each place in a batch (Quiver 4.7).
        self.over_ask = 10

    def __len__(self) -> int:
        items = len(self.dataset)
        if self.drop_last:
            return items // self._world // self.batch * self.batch
        return -(-items // self._world)

    def set_epoch(self, epoch: int) -> None:
        if self._pending is not None and self._pending.plan[1] == epoch:
            return
        self._pending, self._epoch = None, epoch

    def _next(self) -> SubstituteEpoch:
        sampler, self._pending = self._pending, None
        if sampler is None:
            sampler = _native.Sampler(
                self.layout,
                self._seed_now(),
                self._epoch,
                self.batch,
                self._rank,
                self._world,
                self.drop_last,
                self.over_ask,
                self._lengths is not None,
            )
        self._epoch = sampler.plan[1] + 1
        return SubstituteEpoch(self, sampler)

    def _seed_now(self) -> int:
        """An epoch's order depends on the generator's first number and on the epoch."""
        if self._seed is None:
            if self._generator is None and self._world > 1:
                self._seed = SEED_OF_RANKS
            else:
                self._seed = seed_of(self._generator)
        return self._seed

    def progress(self, sampler: _native.Sampler) -> dict[str, Any]:
        seed, epoch, rank, world, _ = sampler.plan
        return {
            "seed": seed,
            "epoch": epoch,
            "rank": rank,
            "world": world,
            "progress": sampler.state(),
        }

    def _idle_state(self) -> dict[str, Any]:
        if self._pending is not None:
            return self.progress(self._pending)
        return {
            "seed": self._seed_now(),
            "epoch": self._epoch,
            "rank": self._rank,
            "world": self._world,
            "progress": None,
        }

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        pending: _native.Sampler | None = None
        seed, epoch = (number(states[0], name) for name in ("seed", "epoch"))
        progress: list[Any] = [progress_of(state) for state in states]
        if any(of_rank is None for of_rank in progress):
            if not all(
                of_rank is None and (number(state, "seed"), number(state, "epoch")) == (seed, epoch)
                for of_rank, state in zip(progress, states, strict=True)
            ):
                raise StateError("the states are not of the same epoch of one job")
        elif len(states) == 1 and number(states[0], "world") == self._world:
            rank = number(states[0], "rank")
            if rank != self._rank:
                raise StateError(f"the state is of rank {rank}, this is rank {self._rank}")
            pending = _native.Sampler.resume(self.layout, progress[0])
            if pending.plan[4] != self.batch and self._world == 1:
                # It is the state of all ranks.
                pending = self._resized(progress)
            elif pending.plan[4] != self.batch:
                raise StateError(
                    f"the state is of batches of {pending.plan[4]}, not of {self.batch};"
                    " give the states of all ranks as a list to go on with another size"
                )
        else:
            pending = self._resized(progress)
        self._pending, self._seed, self._epoch = pending, seed, epoch
        self.current = None

    def _resized(self, progress: list[bytes]) -> _native.Sampler:
        """What is left, dealt anew to the ranks that there are."""
        return _native.Sampler.resize(
            self.layout, progress, self.batch, self._rank, self._world, self.drop_last
        )


class Replay(Drawn):
    """``order="replay"``: what was recorded, bit for bit, every epoch."""

    name = "replay"

    def __init__(
        self,
        dataset: Source,
        batch: int,
        drop_last: bool,
        ranks: tuple[int, int],
        what: bytes,
        lengths: Lengths | None = None,
    ) -> None:
        super().__init__(dataset, batch, drop_last, ranks, lengths)
        self._recording = what
        self._pending = _native.Sampler.replay(self.layout, what)
        size = self._pending.plan[4]
        if size != batch:
            raise ValueError(f"batches of {size} were recorded; give batch_size={size}")
        self._items = _native.Sampler.recorded_items(what)

    def __len__(self) -> int:
        return self._items

    def _next(self) -> SubstituteEpoch:
        sampler, self._pending = self._pending, None
        return SubstituteEpoch(
            self, sampler or _native.Sampler.replay(self.layout, self._recording)
        )

    def progress(self, sampler: _native.Sampler) -> dict[str, Any]:
        return {"progress": sampler.state()}

    def _idle_state(self) -> dict[str, Any]:
        return {"progress": None if self._pending is None else self._pending.state()}

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        state = only(states, "a replay goes on from its own state; give one")
        progress = progress_of(state)
        self._pending = _native.Sampler.replay(self.layout, self._recording, progress)
        self.current = None


#: Those whose locks a fork has to see to.
_of_this_process: weakref.WeakSet[Drawn] = weakref.WeakSet()


def _in_child() -> None:
    for order in [*_of_this_process]:
        order.has_forked()


os.register_at_fork(after_in_child=_in_child)


def numbers(dataset: Source, lengths: Lengths) -> list[float]:
    """The length of every item."""
    values: Any = lengths
    if isinstance(lengths, str):
        if not isinstance(dataset, Dataset):
            raise ValueError(
                "a wrapped dataset has no columns; give lengths= a number for each item"
            )
        values = dataset.column(lengths)
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        raise ValueError(
            "lengths= takes the name of a column of numbers, or a number for each item"
        ) from None


def progress_of(state: dict[str, Any]) -> bytes | None:
    """What the core keeps of an epoch, if one is under way."""
    progress = state.get("progress")
    if not isinstance(progress, bytes | None):
        raise StateError("the state is not one of forebay.DataLoader's, or is damaged")
    return progress
