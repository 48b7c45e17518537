"""Worker pool: PyTorch's workers, replaced when one of them is killed (promise 2).

PyTorch ends the epoch when a worker dies. But the order is made in the main process, so a dead
worker costs only its time: the pool keeps the batches that were drawn and not yielded, discards all
workers with their queues, because a dead one may have held a lock or sent half a message, and gives
the same batches to new workers in the same order.

PyTorch has no public interface for this. ``SUPPORTED`` says whether its iterator has the methods
that are overridden here; if not, the loader uses PyTorch's iterator unchanged.
"""

from __future__ import annotations

import copy
import multiprocessing
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

from forebay._native import ForebayError
from forebay._runtime.warnings import warn
from forebay._workers.exit import WorkerInit
from forebay._workers.interrupts import allow_interrupts, defer_interrupts, raise_deferred
from forebay._workers.shm_arena import new_arena
from forebay._workers.shm_batches import PackedBatch, PackingCollate

#: Deaths without a batch in between, after which workers are not replaced: the batch causes them.
DEATHS_MAX = 3
#: Items of such a batch that the error names.
NAMED_MAX = 16
#: Time for a process that sent half a message to be reported dead.
DYING_SECONDS = 1.0
#: Time for a killed process to end; one that takes longer hangs in the kernel and is abandoned.
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
    """Four workers in a row died while they read one batch; the text names its items."""


class WorkerDied(Exception):
    """A worker has died; the cause is PyTorch's exception."""

    def __init__(self, batch: Any) -> None:
        super().__init__()
        #: The batch that it was reading, if known.
        self.batch = batch


class SurvivingIterator:
    """The iterator of a loader with workers, which survives their deaths.

    After an interrupt, new workers read the pending batches.

    Parameters
    ----------
    loader
        PyTorch's loader.
    on_restart
        Called when workers are replaced.
    should_wait
        While true, workers that have a batch are given no more.
    draw
        Called before a batch is taken from the order. It may be interrupted; the taking may not.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        on_restart: Callable[[], None],
        should_wait: Callable[[], bool],
        draw: Callable[[], None],
    ) -> None:
        # A copy: the loader may keep this iterator, and a cycle would delay the end of workers.
        self._loader = copy.copy(loader)
        self._on_restart, self._should_wait, self._draw = on_restart, should_wait, draw
        with defer_interrupts():
            self._workers = _Workers(loader, should_wait, draw)
        self._workers.prime()
        self._deaths = 0

    def __iter__(self) -> SurvivingIterator:
        return self

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def finished(self) -> int:
        """Batches that were returned or whose error was raised."""
        return self._workers.finished

    def __next__(self) -> Any:
        with defer_interrupts():
            while True:
                try:
                    if not self._workers.is_consistent:
                        self._replace()
                    batch = self._workers.take()
                except WorkerDied as died:
                    self._on_died(died)
                else:
                    self._deaths = 0
                    return batch

    def top_up(self) -> None:
        """Give workers the batches that ``should_wait`` has kept back."""
        with defer_interrupts():
            if self._workers.is_consistent:
                self._workers.top_up()

    def _reset(self, loader: DataLoader[Any]) -> None:
        """Begin another epoch with the same workers; PyTorch's loader calls this by its name."""
        self._deaths = 0
        if not self._workers.is_consistent:
            self._workers.forget()
            self._replace()
            return
        try:
            self._workers._reset(loader)
        except WorkerDied as died:
            self._on_died(died)
            self._replace()

    def _on_died(self, died: WorkerDied) -> None:
        could_not_start = self._workers.could_not_start()
        self._workers.abandon()
        if could_not_start:
            # The next ones would fail in the same way, and each prints its own error.
            raise WorkerError(
                "a worker could not start, and has printed why; if the script itself starts"
                " workers when it is imported, put that code under `if __name__ == '__main__':`, or"
                " give multiprocessing_context='fork'"
            ) from None
        self._deaths += 1
        reason = str(died.__cause__).rstrip(". ")
        if self._deaths > DEATHS_MAX:
            raise WorkerError(
                f"{reason}: {self._deaths} workers in a row died reading"
                f" {_named(died.batch)}; read them with num_workers=0 to see why (a lack of memory"
                " kills workers, too)"
            ) from died.__cause__
        warn(f"{reason}: new workers read its batches again")
        self._on_restart()

    def _replace(self) -> None:
        """Start new workers for the pending batches; the old ones have them until then."""
        old = self._workers
        # The order continues. The seed of the new workers' random numbers is not drawn from the
        # user's generator, whose next number decides the next epoch.
        spare = torch.Generator()
        spare.seed()
        loader = _Overlay(self._loader, generator=spare, _index_sampler=old._sampler_iter)
        with defer_interrupts():
            old.abandon()
            again = [*old.pending.values(), *old.again]
            new = _Workers(loader, self._should_wait, self._draw, again, old.finished)
            new._index_sampler = old._index_sampler
            self._workers = new
            new.prime()


def _named(batch: Any) -> str:
    """A batch in an error message."""
    if not isinstance(batch, list):
        return "a batch" if batch is None else f"item {batch}"
    more = f" and {len(batch) - NAMED_MAX} more" if len(batch) > NAMED_MAX else ""
    return f"the batch of items {', '.join(map(str, batch[:NAMED_MAX]))}{more}"


class _Overlay:
    """An object with some of its attributes replaced."""

    def __init__(self, other: object, **replaced: object) -> None:
        self.__dict__.update(replaced)
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)


class _Workers(_MultiProcessingDataLoaderIter):
    """PyTorch's iterator with three differences.

    - Batches come through shared memory.
    - It keeps the batches that workers were given.
    - A worker's death is raised where a batch is waited for. PyTorch raises it from a signal
      handler, which may interrupt any code of the user or of a sampler.
    """

    def __init__(
        self,
        loader: Any,
        should_wait: Callable[[], bool],
        draw: Callable[[], None],
        again: Iterable[Any] = (),
        finished: int = 0,
    ) -> None:
        self._should_wait, self._draw, self._has_waited = should_wait, draw, False
        #: Batches that workers were given and that were not yielded, by PyTorch's number.
        self.pending: dict[int, Any] = {}
        #: Batches of earlier workers, which are given out first.
        self.again = deque(again)
        self._arrived = 0
        #: Batches that were returned or whose error was raised.
        self.finished = finished
        self._is_consistent = False
        #: Number of the batch that is about to be yielded, or whose error is to be raised.
        self._outcome: int | None = None
        self._is_primed = False
        self._prefetched_max = loader.prefetch_factor * loader.num_workers
        self._pid = os.getpid()
        context = loader.multiprocessing_context or multiprocessing
        self._is_forked = context.get_start_method() == "fork"
        self._arena = new_arena(loader.num_workers)
        super().__init__(
            _Overlay(
                loader,
                collate_fn=PackingCollate(loader.collate_fn, self._arena),
                worker_init_fn=WorkerInit(loader, self._pid),
            )
        )

    @property
    def is_consistent(self) -> bool:
        """Whether PyTorch's state is usable: nothing was interrupted midway, and the workers are
        children of this process.
        """
        return self._is_consistent and self._pid == os.getpid()

    def prime(self) -> None:
        """Give out the first batches.

        PyTorch does this in its constructor, where an interrupt would lose drawn batches.
        """
        self._is_primed = True
        for _ in range(self._prefetched_max):
            self._try_put_index()
        self._is_consistent = True

    def top_up(self) -> None:
        """Give out batches up to PyTorch's prefetch limit, after ``should_wait`` was true."""
        while self._has_waited and len(self.pending) < self._prefetched_max:
            sent = self._send_idx
            self._try_put_index()
            if self._send_idx == sent:
                return  # ``should_wait`` is true again, or there are no more batches
        self._has_waited = False

    def take(self) -> Any:
        """The next batch; it stays pending until nothing can interrupt its return."""
        self._is_consistent, self._outcome = False, None
        try:
            batch = next(self)
        except WorkerDied:
            raise
        except Exception:
            self._on_finished()
            raise
        raise_deferred()
        self._on_finished()
        return batch

    def _on_finished(self) -> None:
        if self._outcome is not None:
            del self.pending[self._outcome]
            self.finished += 1
        self._is_consistent = True

    def forget(self) -> None:
        """Drop pending batches, because another epoch begins."""
        self.pending.clear()
        self.again.clear()
        self._sampler_iter = iter(self._index_sampler)

    def could_not_start(self) -> bool:
        """Whether a worker has ended with an error of its own before the first batch.

        Errors of items reach the main process, and a killed worker has a negative exit code. So an
        exit code of 1 is an exception while a spawned worker imported the script.
        """
        if self.finished or self._is_forked:
            return False
        return any(worker.exitcode == 1 for worker in self._workers)

    def abandon(self) -> None:
        """Kill all workers without touching their queues and locks; a forked child leaves them."""
        self._shutdown = True
        self._is_consistent = False
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
            # The pinning thread polls this. If it waits for the rest of a message, it stays until
            # the process ends.
            self._pin_memory_thread_done_event.set()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if first_iter:
            self._unwatch()
            self._worker_pids_set = False
        self._is_consistent = False
        self.pending.clear()
        super()._reset(loader, first_iter)
        self._is_consistent = self._is_primed

    def _next_index(self) -> Any:
        if not self._is_primed:
            raise StopIteration
        if self.pending and not self.again and self._should_wait():
            self._has_waited = True
            raise StopIteration  # PyTorch takes this for the end, but asks again for each batch
        if self.again:
            index = self.again.popleft()
        else:
            self._draw()
            index = super()._next_index()  # type: ignore[no-untyped-call]
        self.pending[self._send_idx] = index
        return index

    def _process_data(self, data: Any, *rest: Any) -> Any:
        # Called once for every batch that is yielded or whose error is raised.
        in_order = getattr(self, "_in_order", True)
        self._outcome = next(iter(self.pending)) if in_order else self._arrived
        return super()._process_data(data, *rest)  # type: ignore[no-untyped-call]

    def _get_data(self) -> Any:
        try:
            try:
                self._watch()
                with allow_interrupts():
                    number, data = super()._get_data()  # type: ignore[no-untyped-call]
                if isinstance(data, PackedBatch):
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
        # For a dead worker, this would wait for a lock that the worker may have held.
        if shutdown:
            super()._mark_worker_as_unavailable(worker_id, shutdown)

    def _shutdown_workers(self) -> None:
        if self._pid != os.getpid() or not hasattr(self, "_workers"):
            return  # a forked child has a copy; an interrupted constructor has no workers
        is_complete = hasattr(self, "_workers_status")
        if not self._shutdown and (not is_complete or self._dead()):
            self.abandon()
        else:
            super()._shutdown_workers()

    def _dead(self, seconds: float = 0.0) -> list[Any]:
        """The dead workers; waits up to ``seconds`` for the first."""
        ended = connection.wait([worker.sentinel for worker in self._workers], seconds)
        return [worker for worker in self._workers if worker.sentinel in ended]

    def _read_by(self, dead: list[Any]) -> Any:
        """The first pending batch of a dead worker, if PyTorch's state has it."""
        for number, (worker, *arrived) in getattr(self, "_task_info", {}).items():
            if not arrived and self._workers[worker] in dead:
                return self.pending.get(number)
        return None

    def _watch(self) -> None:
        """Raise here when a worker dies, also while half a message is read."""
        if threading.current_thread() is threading.main_thread():
            pids = tuple(worker.pid for worker in self._workers if worker.pid is not None)
            _C._set_worker_pids(id(self), pids)
        # Deaths before this call were signalled before it.
        for worker in self._dead():
            raise RuntimeError(
                f"DataLoader worker (pid {worker.pid}) ended with exit code {worker.exitcode}"
            )

    def _unwatch(self) -> None:
        with suppress(ValueError):  # not watched
            _C._remove_worker_pids(id(self))
