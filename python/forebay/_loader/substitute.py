"""Orders that the node chooses: ``order="substitute"``, and its replays."""

from __future__ import annotations

import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from forebay import _native
from forebay._data.dataset import ProbeIndex
from forebay._data.prefetch import prefetch_window, send_hint
from forebay._data.wrap import Source
from forebay._loader.checkpoint import DAMAGED, int_field, single_state
from forebay._loader.item_numbers import Lengths, Weights, read_lengths, read_weights
from forebay._loader.order import (
    DRAWN_MIN,
    Epoch,
    Order,
    items_of_rank,
    refuse_division,
    shared_seed,
)
from forebay._native import Fenced, StateError
from forebay._runtime.ranks import Ranks
from forebay._workers.interrupts import defer_interrupts

#: Batches that are drawn before PyTorch takes them, so that the agent can fetch what is missing.
DRAWN_MAX = 4
#: Items of half-chunks being loaded that are announced to an agent at a time.
LOADING_HINT_MAX = 1024


class SubstituteEpoch(Epoch):
    """Batches of cached items first, from the draw set of the dataset's manager."""

    def __init__(self, order: DrawnOrder, job: _native.Job) -> None:
        super().__init__(order.batch)
        self._order, self._dataset, self.job = order, order.dataset, job
        self._window = prefetch_window(order.dataset)
        self._drawn_max = max(DRAWN_MIN, min(DRAWN_MAX, self._window.items // self.batch))
        incarnation = order.dataset._incarnation
        number = incarnation.begin(self, order.dataset._join(*order.ranks))
        batches = -(-len(order) // order.batch)
        with self.lock:
            job.start_reporting(incarnation.number, number, batches, order.gpus, order.reporting)
            order.reporting = job
        self.report()

    @property
    def lock(self) -> threading.RLock:
        """The order's lock, which a fork may replace."""
        return self._order.lock

    def _reporting(self) -> _native.Job:
        """The job. It stops reporting once another epoch has started on the dataset."""
        if not self._dataset._incarnation.is_reporting(self):
            self.job.stop_reporting()
        return self.job

    @property
    def _is_managed(self) -> bool:
        """Whether a manager on a node decides what this epoch draws from."""
        return self.job.is_managed

    def should_wait(self) -> bool:
        with self.lock:
            self._reporting()
            return not self._drawn and self._is_managed and self._is_paced()

    def _is_paced(self) -> bool:
        """Whether drawing later is better: another half-chunk may join the draw set."""
        return self.job.should_wait()

    def on_waited(self, seconds: float) -> None:
        with self.lock:
            self.job.on_waited(seconds)

    def fill(self, at_least: int = 0) -> None:
        with self.lock:
            self._reporting()
            is_managed = self._is_managed
            while len(self._drawn) < (self._drawn_max if is_managed else DRAWN_MIN):
                if is_managed and len(self._drawn) >= at_least:
                    if self._drawn and self.job.is_short():
                        return  # there is time for another half-chunk to join the draw set
                    if self._is_paced():
                        return
                job = self._reporting()
                with defer_interrupts():
                    batch = job.next_batch(self._dataset._reader)
                    if batch is None:
                        return
                    items, missing, is_probe = batch
                    if is_probe:
                        items = [ProbeIndex(item) for item in items]
                    self._drawn.append(items)
                if is_managed and not is_probe:
                    send_hint(self._dataset, missing)
                send_hint(self._dataset, job.upcoming(self._window.items))

    def on_yielded(self) -> int:
        with self.lock:
            self._reporting().on_yielded()
        return super().on_yielded()

    def on_computed(self, took: float, stalled: float) -> None:
        with self.lock:
            self._reporting().on_computed(took, stalled)

    def report(self) -> None:
        with self.lock:
            job, reader = self._reporting(), self._dataset._reader
            try:
                is_answered = job.report(reader)
            except Fenced:
                self._dataset._incarnation.on_fenced()
                raise
            if is_answered:
                send_hint(self._dataset, job.loading_items(reader, LOADING_HINT_MAX))

    def state(self) -> dict[str, Any]:
        with self.lock:
            return self._order.progress(self.job)

    def counts(self) -> dict[str, int]:
        with self.lock:
            return self.job.counts()

    @property
    def dataset(self) -> Source:
        """The dataset that is drawn from."""
        dataset: Source = self._dataset
        return dataset

    def shuffle_quality(self) -> dict[str, float]:
        """The distance of the yielded batches from a full shuffle (promise 8)."""
        with self.lock:
            return self.job.shuffle_quality()

    def shares(self) -> tuple[float, float]:
        """The share of the dataset that is pinned, and the share that is in the draw set."""
        with self.lock:
            return self.job.shares()


class DrawnOrder(Order):
    """Base class of substitution and its replays."""

    def __init__(
        self,
        dataset: Source,
        batch: int,
        drop_last: bool,
        ranks: Ranks,
        lengths: Lengths | None,
    ) -> None:
        super().__init__(dataset, batch, drop_last)
        self._lengths = None if lengths is None else read_lengths(dataset, lengths)
        self._ranks = ranks
        self._init_process_local()

    def check_foreign_loader(self) -> None:
        """Another loader of several ranks would divide the items of this rank once more."""
        refuse_division(self._ranks.world)

    @property
    def ranks(self) -> tuple[int, int]:
        """The rank of this process and the number of ranks."""
        return self._ranks.now

    @property
    def gpus(self) -> int:
        """GPUs that wait when the job waits for data, those of all ranks together."""
        return self._ranks.gpus

    def _init_process_local(self) -> None:
        """Attributes that each process has of its own."""
        self.layout = self.dataset._layout
        if self._lengths is not None:
            self.layout = self.layout.with_lengths(self._lengths)
        #: The rest of an epoch that was loaded.
        self._pending: _native.Job | None = None
        #: The epoch that reported last: the next one takes over its measurements and its draw set.
        self.reporting: _native.Job | None = None
        #: Guards the jobs of all epochs: threads may each have an epoch.
        self.lock = threading.RLock()
        _orders_of_process.add(self)

    def __getstate__(self) -> dict[str, Any]:
        own = ("layout", "_pending", "reporting", "lock")
        kept = {name: value for name, value in super().__getstate__().items() if name not in own}
        return {**kept, "state": self._idle_state()}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        state = kept.pop("state")
        self.__dict__.update(kept)
        self._init_process_local()
        self.load([state])

    def after_fork_in_child(self) -> None:
        """Replace the lock if another thread held it during the fork: that thread is not here."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:
            self.lock, self._current, self.reporting = threading.RLock(), None, None

    @abstractmethod
    def progress(self, job: _native.Job) -> dict[str, Any]:
        """The fields of a checkpoint of an epoch."""

    def recording(self) -> bytes:
        """A recording of the current epoch, or of the last one."""
        if not isinstance(self.current, SubstituteEpoch):
            raise StateError("nothing has been yielded yet; record an epoch first")
        with self.lock:
            recording = self.current.job.recording()
        if recording is None:
            raise StateError(
                "the epoch was resumed, so its beginning is not recorded; record a whole epoch"
            )
        return recording


class Substitute(DrawnOrder):
    """``order="substitute"``: every item once per epoch, among all ranks; cached items first."""

    name = "substitute"

    def __init__(
        self,
        dataset: Source,
        batch: int,
        drop_last: bool,
        ranks: Ranks,
        generator: torch.Generator | None,
        lengths: Lengths | None = None,
        weights: Weights | None = None,
    ) -> None:
        super().__init__(dataset, batch, drop_last, ranks, lengths)
        self._weights = None if weights is None else read_weights(dataset, weights)
        self._generator = generator
        self._seed: int | None = None
        self._epoch = 0
        #: Candidates per item of a batch (Quiver 4.7).
        self.over_ask = 10

    def __len__(self) -> int:
        return items_of_rank(len(self.dataset), self._ranks.world, self.batch, self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        if self._pending is not None and self._pending.plan[1] == epoch:
            return
        self._pending, self._epoch = None, epoch

    def _new_epoch(self) -> SubstituteEpoch:
        rank, world = self._ranks.begin()
        job, self._pending = self._pending, None
        if job is None:
            seed = self._seed_now()
            job = _native.Job(
                self._layout_of(seed, self._epoch),
                seed,
                self._epoch,
                self.batch,
                rank,
                world,
                self.drop_last,
                self.over_ask,
                self._lengths is not None,
            )
        self._epoch = job.plan[1] + 1
        return SubstituteEpoch(self, job)

    def _seed_now(self) -> int:
        """The first number of the generator; with the epoch, it determines the epoch's order."""
        if self._seed is None:
            self._seed = shared_seed(self._generator, self._ranks.world)
        return self._seed

    def _layout_of(self, seed: int, epoch: int) -> _native.ItemMap:
        """The item map of an epoch: with weights, items occur in it by weight."""
        layout: _native.ItemMap = self.layout
        if self._weights is None:
            return layout
        return layout.weighted(self._weights, seed, epoch)

    def progress(self, job: _native.Job) -> dict[str, Any]:
        seed, epoch, rank, world, _ = job.plan
        return {
            "seed": seed,
            "epoch": epoch,
            "rank": rank,
            "world": world,
            "progress": job.state(),
        }

    def _idle_state(self) -> dict[str, Any]:
        if self._pending is not None:
            return self.progress(self._pending)
        rank, world = self._ranks.known
        return {
            "seed": self._seed_now(),
            "epoch": self._epoch,
            "rank": rank,
            "world": world,
            "progress": None,
        }

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        pending: _native.Job | None = None
        seed, epoch = (int_field(states[0], name) for name in ("seed", "epoch"))
        progress: list[Any] = [progress_field(state) for state in states]
        if any(of_rank is None for of_rank in progress):
            if not all(
                of_rank is None
                and (int_field(state, "seed"), int_field(state, "epoch")) == (seed, epoch)
                for of_rank, state in zip(progress, states, strict=True)
            ):
                raise StateError(
                    "the states are not of the same epoch of one job; give those of one checkpoint"
                )
        elif len(states) == 1 and int_field(states[0], "world") == self._ranks.world:
            rank = int_field(states[0], "rank")
            if rank != self.ranks[0]:
                raise StateError(
                    f"the state is of rank {rank}, this is rank {self.ranks[0]}; give the state of"
                    " this rank"
                )
            pending = _native.Job.resume(self._layout_of(seed, epoch), progress[0])
            if pending.plan[4] != self.batch and self._ranks.world == 1:
                # It is the state of all ranks.
                pending = self._resharded(progress, seed, epoch)
            elif pending.plan[4] != self.batch:
                raise StateError(
                    f"the state is of batch_size={pending.plan[4]}, not {self.batch}; give the"
                    " states of all ranks as a list to continue with another batch size"
                )
        else:
            pending = self._resharded(progress, seed, epoch)
        self._pending, self._seed, self._epoch = pending, seed, epoch
        self.current = None

    def _resharded(self, progress: list[bytes], seed: int, epoch: int) -> _native.Job:
        """The rest of the epoch, divided among the present ranks."""
        layout = self._layout_of(seed, epoch)
        return _native.Job.reshard(layout, progress, self.batch, *self.ranks, self.drop_last)

    def recording(self) -> bytes:
        if self._weights is not None:
            raise StateError("an epoch with weights= is not recorded; it repeats with its seed")
        return super().recording()


class Replay(DrawnOrder):
    """``order="replay"``: a recording, bit for bit, every epoch."""

    name = "replay"

    def __init__(
        self,
        dataset: Source,
        batch: int,
        drop_last: bool,
        ranks: Ranks,
        recording: bytes,
        lengths: Lengths | None = None,
    ) -> None:
        super().__init__(dataset, batch, drop_last, ranks, lengths)
        self._recording = recording
        self._pending = _native.Job.replay(self.layout, recording)
        size = self._pending.plan[4]
        if size != batch:
            raise ValueError(f"the recording has batch_size={size}, not {batch}; give {size}")
        self._items = _native.Job.recorded_items(recording)

    def __len__(self) -> int:
        return self._items

    def _new_epoch(self) -> SubstituteEpoch:
        job, self._pending = self._pending, None
        return SubstituteEpoch(self, job or _native.Job.replay(self.layout, self._recording))

    def progress(self, job: _native.Job) -> dict[str, Any]:
        return {"progress": job.state()}

    def _idle_state(self) -> dict[str, Any]:
        return {"progress": None if self._pending is None else self._pending.state()}

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        state = single_state(states, "a replay continues from its own state; give one state")
        progress = progress_field(state)
        self._pending = _native.Job.replay(self.layout, self._recording, progress)
        self.current = None


#: Orders of this process, whose locks a fork has to check.
_orders_of_process: weakref.WeakSet[DrawnOrder] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for order in [*_orders_of_process]:
        order.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def progress_field(state: dict[str, Any]) -> bytes | None:
    """The core's state of an epoch under way."""
    progress = state.get("progress")
    if not isinstance(progress, bytes | None):
        raise StateError(DAMAGED)
    return progress
