"""Statistics of a loader: what its iterators count, and ``DataLoader.stats()``."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from forebay._data.mixture import Mixture
from forebay._data.wrap import Source, Wrapped
from forebay._loader.mixture_order import MixtureEpoch
from forebay._loader.order import Epoch, Order
from forebay._loader.substitute import SubstituteEpoch
from forebay._native import ForebayError


class LoaderCounters:
    """Counters of a loader's iterators, in all epochs."""

    def __init__(self) -> None:
        self.batches = 0
        self.items = 0
        #: Time inside the iterator's ``next``.
        self.stall_seconds = 0.0
        #: Time between two calls of ``next``.
        self.compute_seconds = 0.0
        #: Part of ``stall_seconds`` spent waiting for slower jobs.
        self.pacing_seconds = 0.0


class HitCounter:
    """The share of items that the node had, of those that were read during a loader's epochs."""

    def __init__(self, dataset: Source | Mixture) -> None:
        self._dataset = dataset
        self._read = self._missed = 0
        #: The dataset's counts at the last update; ``None`` between epochs.
        self._since: tuple[int, int] | None = None

    def on_epoch_begun(self) -> None:
        self._update()
        self._since = self._now()

    def on_epoch_ended(self) -> None:
        self._update()
        self._since = None

    def share(self) -> float | None:
        """The share of hits; ``None`` without a node, or before the first item."""
        if not self._dataset._has_node:
            return None
        self._update()
        return max(0.0, 1.0 - self._missed / self._read) if self._read else None

    def _now(self) -> tuple[int, int]:
        return self._dataset._items_yielded, self._dataset._missed()

    def _update(self) -> None:
        since = self._since
        if since is not None:
            self._since = now = self._now()
            self._read += now[0] - since[0]
            # An agent that was started again counts from 0.
            self._missed += max(0, now[1] - since[1])


def collect_stats(order: Order, counters: LoaderCounters, hits: HitCounter) -> dict[str, Any]:
    """The result of ``DataLoader.stats()``."""
    dataset = order.dataset
    counted: dict[str, Any]
    try:
        counted = dataset.stats()
    except ForebayError:
        counted = {"node": None, "agent": {}, "loader": {"workers_restarted": 0}}
    counts, epoch = order.counts(), order.current
    drawn = _drawn_epochs(epoch)
    pinned, drawable = _shares(drawn)
    agent = counted.get("agent") or {}
    if isinstance(dataset, Wrapped):
        hit_share = counted["hits"] / counted["items"] if counted.get("items") else None
        skipped = {"count": 0, "items": list[int]()}  # a wrapped dataset skips nothing
    else:
        hit_share = hits.share()
        skipped = dataset.skipped()
    return {
        "batches": counters.batches,
        "items": counters.items,
        "padding": counts.get("padding", 0),
        "skipped": skipped,
        "hit_share": _rounded(hit_share),
        "stall_seconds": counters.stall_seconds,
        "pacing_seconds": counters.pacing_seconds,
        "compute_seconds": counters.compute_seconds,
        "origin_bytes": agent.get("agent_origin_bytes", 0),
        "shuffle_quality": (
            epoch.shuffle_quality() if isinstance(epoch, SubstituteEpoch) else None
        ),
        "pinned_share": _rounded(pinned),
        "drawable_share": _rounded(drawable),
        "probes": counts.get("probes", 0),
        "reports": sum(one.job.reports for one in drawn),
        "workers_restarted": counted["loader"]["workers_restarted"],
        "items_verified": counted["loader"].get("items_verified", 0),
        "hash_mismatches": counted["loader"].get("hash_mismatches", 0),
    }


def _drawn_epochs(epoch: Epoch | None) -> list[SubstituteEpoch]:
    """The substitute epochs of an epoch: itself, or those of a mixture's parts."""
    parts = epoch.parts if isinstance(epoch, MixtureEpoch) else [epoch]
    return [part for part in parts if isinstance(part, SubstituteEpoch)]


def _shares(drawn: Sequence[SubstituteEpoch]) -> tuple[float | None, float | None]:
    """The shares of all items that are pinned, and that are in the draw set."""
    items = [len(one.dataset) for one in drawn]
    if not items:
        return None, None
    parts = zip(*(one.shares() for one in drawn), strict=True)
    pinned, drawable = (sum(map(operator.mul, shares, items)) / sum(items) for shares in parts)
    return pinned, drawable


def _rounded(share: float | None) -> float | None:
    return None if share is None else abs(round(share, 6))
