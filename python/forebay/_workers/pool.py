"""PyTorch's workers, replaced when one of them is killed (promise 2).

PyTorch ends the epoch then. But the order is made in the main process, so nothing is lost with a
worker except its time: we keep the batches that were chosen and not yielded yet, throw all workers
and their queues away, since whoever died may have held a lock or written half a message, and give
the same batches to new ones in the same order.

PyTorch has no public seam for this. ``SUPPORTED`` says whether its iterator still has the methods
that are overridden here; if not, the loader uses it as it is.
"""

from __future__ import annotations

import copy
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing import connection
from typing import Any

import torch
from torch import _C
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from forebay._handover import Packed, Packing, arena
from forebay._interrupts import deliver, held, let_through
from forebay._native import ForebayError
from forebay._warnings import warn

#: Workers that die so often without a batch in between are not replaced: it is the batch.
DEATHS_MAX = 3
#: So many items of such a batch are named.
NAMED_MAX = 16
#: What a dying process sent may fail to arrive a moment before it is known to be dead.
DYING_SECONDS = 1.0
#: A killed process that has not ended by then hangs in the kernel, and is left there.
KILL_SECONDS = 5.0

SUPPORTED = all(
    hasattr(_MultiProcessingDataLoaderIter, name)
    for name in (
        "_get_data",
        "_mark_worker_as_unavailable",
        "_next_index",
        "_process_data",
        "_reset",
        "_shutdown_workers",
        "_try_put_index",
    )
) and all(hasattr(_C, name) for name in ("_set_worker_pids", "_remove_worker_pids"))


class WorkerError(ForebayError, RuntimeError):
    """Workers keep dying over a batch; the text says over which."""


class WorkerDied(Exception):
    """One of the workers is dead; its cause is what PyTorch says about that."""

    def __init__(self, batch: Any) -> None:
        super().__init__()
        #: What it was reading, as far as that is known.
        self.batch = batch


class SurvivingIterator:
    """What a loader with workers iterates with; a worker's death is an event, not an error.

    Whoever is interrupted and goes on is given what was pending then by new workers. While
    ``holds_back`` says so, workers are given no more batches, as long as they have any. ``draw`` is
    called before one is asked for, and may be interrupted; the asking may not.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        on_restart: Callable[[], None],
        holds_back: Callable[[], bool],
        draw: Callable[[], None],
    ) -> None:
        # A copy: the loader may keep this iterator, and in a cycle workers are not ended in order.
        self._loader = copy.copy(loader)
        self._on_restart, self._holds_back, self._draw = on_restart, holds_back, draw
        with held():
            self._workers = _Workers(loader, holds_back, draw)
        self._workers.prime()
        self._deaths = 0

    def __iter__(self) -> SurvivingIterator:
        return self

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def given(self) -> int:
        """Batches that were handed over, or whose error was."""
        return self._workers.given

    def __next__(self) -> Any:
        with held():
            while True:
                try:
                    if not self._workers.is_whole:
                        self._replace()
                    batch = self._workers.take()
                except WorkerDied as died:
                    self._has_died(died)
                else:
                    self._deaths = 0
                    return batch

    def top_up(self) -> None:
        """Give out what was held back, as far as it is not any more."""
        with held():
            if self._workers.is_whole:
                self._workers.top_up()

    def _reset(self, loader: DataLoader[Any]) -> None:
        """Begin another epoch with the same workers; PyTorch's loader calls this by its name."""
        self._deaths = 0
        if not self._workers.is_whole:
            self._workers.forget()
            self._replace()
            return
        try:
            self._workers._reset(loader)
        except WorkerDied as died:
            self._has_died(died)
            self._replace()

    def _has_died(self, died: WorkerDied) -> None:
        self._workers.abandon()
        self._deaths += 1
        said = str(died.__cause__).rstrip(". ")
        if self._deaths > DEATHS_MAX:
            raise WorkerError(
                f"{said}: {self._deaths} workers in a row died over"
                f" {_named(died.batch)}; read them with num_workers=0 to see why, and mind that a"
                " lack of memory kills, too"
            ) from died.__cause__
        warn(f"{said}: new workers read its batches again")
        self._on_restart()

    def _replace(self) -> None:
        """New workers read what is pending. Until they are there, the old ones tell what is."""
        old = self._workers
        # The order goes on where it is. The seed of the new workers' random numbers is not drawn
        # from the user's generator, whose next number decides the next epoch.
        spare = torch.Generator()
        spare.seed()
        as_it_is = _But(self._loader, generator=spare, _index_sampler=old._sampler_iter)
        with held():
            old.abandon()
            again = [*old.pending.values(), *old.again]
            new = _Workers(as_it_is, self._holds_back, self._draw, again, old.given)
            new._index_sampler = old._index_sampler
            self._workers = new
            new.prime()


def _named(batch: Any) -> str:
    """A batch, as a message names it."""
    if not isinstance(batch, list):
        return "a batch" if batch is None else f"item {batch}"
    more = f" and {len(batch) - NAMED_MAX} more" if len(batch) > NAMED_MAX else ""
    return f"the batch of items {', '.join(map(str, batch[:NAMED_MAX]))}{more}"


class _But:
    """An object, but for some of its attributes."""

    def __init__(self, other: object, **instead: object) -> None:
        self.__dict__.update(instead)
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)


class _Workers(_MultiProcessingDataLoaderIter):
    """PyTorch's own, with three differences: batches come through shared memory, it remembers what
    the workers were given, and their deaths are told when a batch is waited for, nowhere else.

    PyTorch raises from a signal handler, that is, anywhere in the user's program or in a sampler.
    """

    def __init__(
        self,
        loader: Any,
        holds_back: Callable[[], bool],
        draw: Callable[[], None],
        again: Iterable[Any] = (),
        given: int = 0,
    ) -> None:
        self._holds_back, self._draw, self._has_held_back = holds_back, draw, False
        #: What was given to workers and not yielded yet, by PyTorch's number.
        self.pending: dict[int, Any] = {}
        self.again = deque(again)  # about as many as are given out at first, so soon empty
        self._arrived = 0
        #: Batches that were handed over, or whose error was.
        self.given = given
        self._is_whole = False
        #: The number of the batch that is about to be yielded, or its error.
        self._outcome: int | None = None
        self._is_primed = False
        self._ahead = loader.prefetch_factor * loader.num_workers
        self._pid = os.getpid()
        self._arena = arena(loader.num_workers)
        super().__init__(_But(loader, collate_fn=Packing(loader.collate_fn, self._arena)))

    @property
    def is_whole(self) -> bool:
        """Whether nothing was interrupted midway, so that PyTorch's books are right; in a forked
        child they are of workers that are not its own.
        """
        return self._is_whole and self._pid == os.getpid()

    def prime(self) -> None:
        """Give out the first batches. PyTorch does this while it makes workers; but then, whoever
        is interrupted has drawn from the order for nothing.
        """
        self._is_primed = True
        for _ in range(self._ahead):
            self._try_put_index()
        self._is_whole = True

    def top_up(self) -> None:
        """Give out as many as PyTorch would, had nothing been held back."""
        while self._has_held_back and len(self.pending) < self._ahead:
            sent = self._send_idx
            self._try_put_index()
            if self._send_idx == sent:
                return  # it still is, or was the last
        self._has_held_back = False

    def take(self) -> Any:
        """The next batch: it is pending until all has been done for it but the handing over."""
        self._is_whole, self._outcome = False, None
        try:
            batch = next(self)
        except WorkerDied:
            raise
        except Exception:
            self._settle()
            raise
        deliver()
        self._settle()
        return batch

    def _settle(self) -> None:
        if self._outcome is not None:
            del self.pending[self._outcome]
            self.given += 1
        self._is_whole = True

    def forget(self) -> None:
        """Another epoch begins: nothing is pending."""
        self.pending.clear()
        self.again.clear()
        self._sampler_iter = iter(self._index_sampler)

    def abandon(self) -> None:
        """Kill all workers, and leave their queues and locks alone; a fork leaves them, too."""
        self._shutdown = True
        self._is_whole = False
        self._unwatch()
        if self._pid != os.getpid():
            return
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join(KILL_SECONDS)
        for queue in self._index_queues:
            queue.close()
        if hasattr(self, "_pin_memory_thread_done_event"):
            # Its thread looks at this now and then. One that waits for the rest of a message does
            # not, and stays until the process ends.
            self._pin_memory_thread_done_event.set()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if first_iter:
            self._unwatch()
            self._worker_pids_set = False
        self._is_whole = False
        self.pending.clear()
        super()._reset(loader, first_iter)
        self._is_whole = self._is_primed

    def _next_index(self) -> Any:
        if not self._is_primed:
            raise StopIteration
        if self.pending and not self.again and self._holds_back():
            self._has_held_back = True
            raise StopIteration  # PyTorch takes that for the end, but asks again all the same
        if self.again:
            index = self.again.popleft()
        else:
            self._draw()
            index = super()._next_index()  # type: ignore[no-untyped-call]
        self.pending[self._send_idx] = index
        return index

    def _process_data(self, data: Any, *rest: Any) -> Any:
        # Called once for every batch that is yielded, or whose error is.
        in_order = getattr(self, "_in_order", True)
        self._outcome = next(iter(self.pending)) if in_order else self._arrived
        return super()._process_data(data, *rest)  # type: ignore[no-untyped-call]

    def _get_data(self) -> Any:
        try:
            try:
                self._watch()
                with let_through():
                    number, data = super()._get_data()  # type: ignore[no-untyped-call]
                if isinstance(data, Packed):
                    data = data.unpack()
            finally:
                self._unwatch()
        except Exception as problem:
            self._unwatch()
            if dead := self._dead(DYING_SECONDS):
                raise WorkerDied(self._read_by(dead)) from problem
            raise
        self._arrived = number
        return number, data

    def _mark_worker_as_unavailable(self, worker_id: int, shutdown: bool = False) -> None:
        # Of a dead worker, this would wait for a lock that it may have held.
        if shutdown:
            super()._mark_worker_as_unavailable(worker_id, shutdown)

    def _shutdown_workers(self) -> None:
        if self._pid != os.getpid() or not hasattr(self, "_workers"):
            return  # a fork has but a copy, and those who were interrupted in the making have none
        is_made = hasattr(self, "_workers_status")
        if not self._shutdown and (not is_made or self._dead()):
            self.abandon()
        else:
            super()._shutdown_workers()

    def _dead(self, seconds: float = 0.0) -> list[Any]:
        """The dead among the workers, if need be after some waiting for the first."""
        ended = connection.wait([worker.sentinel for worker in self._workers], seconds)
        return [worker for worker in self._workers if worker.sentinel in ended]

    def _read_by(self, dead: list[Any]) -> Any:
        """The batch that somebody who is dead was to read first, if PyTorch's books tell."""
        for number, (worker, *arrived) in getattr(self, "_task_info", {}).items():
            if not arrived and self._workers[worker] in dead:
                return self.pending.get(number)
        return None

    def _watch(self) -> None:
        """From now on the death of a worker raises here, even amidst reading half a message."""
        if threading.current_thread() is threading.main_thread():
            pids = tuple(worker.pid for worker in self._workers if worker.pid is not None)
            _C._set_worker_pids(id(self), pids)
        # What happened before has been signalled before.
        for worker in self._dead():
            raise RuntimeError(
                f"DataLoader worker (pid {worker.pid}) ended with exit code {worker.exitcode}"
            )

    def _unwatch(self) -> None:
        with suppress(ValueError):  # not watched
            _C._remove_worker_pids(id(self))
