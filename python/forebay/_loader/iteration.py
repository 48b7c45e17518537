"""The iterator of ``forebay.DataLoader``: counts, times and reports around PyTorch's iterator.

A batch that passes through here has been yielded, which is what states and reports count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from forebay._loader.order import Epoch
from forebay._native import ForebayError
from forebay._workers.interrupts import defer_interrupts
from forebay._workers.pool import SurvivingIterator

if TYPE_CHECKING:
    from forebay._loader.dataloader import DataLoader

#: Interval at which a loader that waits for slower jobs checks their progress.
WAIT_SECONDS = 0.005


class Iteration:
    """One epoch of a loader."""

    def __init__(self, loader: DataLoader, epoch: Epoch, inner: Any) -> None:
        #: Batches that were requested from the node in advance.
        self._requested: list[list[int]] = []
        self._loader, self._epoch, self._inner = loader, epoch, inner
        self._generation = loader._generation
        self._counters = loader._counters
        #: Time up to which the stall is counted.
        self._counted_until = 0.0
        #: The last batch: when it was asked for, and the stall until it came.
        self._last: tuple[float, float] | None = None
        self._fenced: ForebayError | None = None
        # An interrupt must not come between a worker's batch and its count.
        survives = isinstance(inner, SurvivingIterator)
        self._defer: Callable[[], Any] = defer_interrupts if survives else nullcontext
        loader._hits.on_epoch_begun()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._inner)

    def __next__(self) -> Any:
        if self._epoch.has_ended:
            raise StopIteration
        self._check_workers()
        self._counted_until = entered = time.perf_counter()
        self._on_computed(entered)
        try:
            self._prepare()
            with self._defer():
                return self._take(entered)
        except StopIteration:
            self._end()
            raise
        finally:
            self._count_stall()

    def _check_workers(self) -> None:
        """Persistent workers read the epoch that was begun last, not this one."""
        loader = self._loader
        if loader.persistent_workers and loader._generation != self._generation:
            raise RuntimeError(
                "another epoch has begun with the same persistent workers; use its iterator, or"
                " give persistent_workers=False, so that every iterator has workers of its own"
            )

    def _take(self, entered: float) -> Any:
        before = self._finished()
        try:
            batch = next(self._inner)
        except StopIteration as problem:
            is_error = self._epoch.has_taken if before is None else self._finished() != before
            if not is_error:
                raise
            self._on_yielded(entered)
            raise RuntimeError(
                "reading a batch raised StopIteration, which would end the iteration; raise another"
                " exception"
            ) from problem
        except Exception:
            # A batch whose error is raised counts as yielded: the next one follows it.
            if before is None or self._finished() != before:
                self._on_yielded(entered)
            raise
        self._on_yielded(entered)
        return batch

    def _prepare(self) -> None:
        """Do everything that may fail or be interrupted before PyTorch asks for indices.

        PyTorch would take an exception there for the end of the epoch.
        """
        epoch, inner = self._epoch, self._inner
        if self._fenced is not None:
            raise self._fenced
        self._loader._order.current = epoch
        if self._loader.num_workers == 0:
            with defer_interrupts():
                epoch.return_taken()
                if hasattr(inner, "_sampler_iter"):
                    # A Ctrl-C may have ended it, or have come after everything was drawn.
                    inner._sampler_iter = iter(inner._index_sampler)
        self._report()
        epoch.fill()
        while not epoch.has_taken and epoch.should_wait():
            self._wait_for_slower_jobs()
        if isinstance(inner, SurvivingIterator):
            inner.top_up()
        self._request_ahead(epoch)

    def _report(self) -> None:
        try:
            self._epoch.report()
        except ForebayError as problem:
            self._fenced = problem
            raise

    def _wait_for_slower_jobs(self) -> None:
        """Pacing: everything drawn was yielded, and the rest of the draw set is for slower jobs."""
        began = time.perf_counter()
        time.sleep(WAIT_SECONDS)
        self._report()
        waited = time.perf_counter() - began
        self._epoch.on_waited(waited)
        self._count_stall()
        self._counters.pacing_seconds += waited
        self._epoch.fill()

    def _request_ahead(self, epoch: Epoch) -> None:
        """Without workers, let the node read the next batches while this one is used."""
        if self._loader.num_workers > 0:
            return
        following = epoch.batches_to_request()
        for batch in following:
            if not any(batch is requested for requested in self._requested):
                self._loader._order.dataset._request(batch)
        self._requested = following

    def __del__(self) -> None:
        self._cancel_requests()

    def _cancel_requests(self) -> None:
        """Free the node's memory of requested batches that will not be read."""
        requested, self._requested = self._requested, []
        for batch in requested:
            with suppress(ForebayError):
                self._loader._order.dataset._cancel(batch)

    def _finished(self) -> int | None:
        """Batches that PyTorch's iterator has returned or failed; ``None`` if it does not count."""
        finished: int | None = getattr(self._inner, "finished", None)
        return finished

    def _on_yielded(self, entered: float) -> None:
        with defer_interrupts():
            self._last = (entered, time.perf_counter() - entered)
            items = self._epoch.on_yielded()
            self._counters.batches += 1
            self._counters.items += items
            self._loader._order.dataset._items_yielded += items

    def _count_stall(self) -> None:
        """Count the stall up to now; a Ctrl-C or the end of the epoch also ends one."""
        now = time.perf_counter()
        self._counters.stall_seconds += now - self._counted_until
        self._counted_until = now

    def _on_computed(self, now: float) -> None:
        """The user asks for the next batch and is done with the last."""
        if self._last is None:
            return
        began, stalled = self._last
        self._last = None
        self._counters.compute_seconds += max(0.0, now - began - stalled)
        self._epoch.on_computed(now - began, stalled)

    def _end(self) -> None:
        epoch = self._epoch
        if not epoch.is_exhausted:
            raise RuntimeError(
                "the epoch was interrupted while a batch was drawn; continue with load_state_dict"
            )
        epoch.has_ended = True
        self._cancel_requests()
        self._loader._hits.on_epoch_ended()
        epoch.report()
