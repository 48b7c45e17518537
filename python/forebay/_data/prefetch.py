"""Prefetch hints: which items a loader will read soon, announced to the job's agent.

A hint is an optimisation. If it cannot be sent, the read that follows reports the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from forebay._data.wrap import Source
from forebay._native import ForebayError, PrefetchWindow
from forebay._workers.interrupts import allow_interrupts


def prefetch_window(dataset: Source) -> PrefetchWindow:
    """The number of items that are announced in advance."""
    node = None
    with suppress(ForebayError):
        node = dataset.stats()["node"]
    # A node of another version may not report it.
    capacity = None if node is None else node.get("capacity_bytes")
    return PrefetchWindow(capacity, dataset._blob_bytes)


def send_hint(dataset: Source, items: Sequence[int]) -> None:
    """Announce items to the agent, in the order in which they will be read."""
    if items:
        with suppress(ForebayError), allow_interrupts():
            dataset._prefetch_hint(items)
