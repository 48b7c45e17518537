"""Statistics that print as one line for people, and are a dict of all counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class ShortStats(dict[str, Any]):
    """A dict whose text is one line; ``dict(stats)`` has the text of all its values."""

    def __init__(self, stats: Mapping[str, Any], line: Callable[[Mapping[str, Any]], str]) -> None:
        super().__init__(stats)
        self._line = line

    def __repr__(self) -> str:
        return self._line(self)

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return ShortStats, (dict(self), self._line)


def dataset_line(stats: Mapping[str, Any]) -> str:
    """The line of ``Dataset.stats()``."""
    agent, node = stats.get("agent") or {}, stats.get("node")
    parts = [f"{as_bytes(agent.get('agent_origin_bytes', 0))} read from the origin"]
    if node is None:
        parts.append("no node")
    elif (held := node.get("resident_bytes")) is not None:
        parts.append(f"the node holds {as_bytes(held)}{_of(node.get('capacity_bytes'))}")
    return ", ".join(parts)


def wrapped_line(stats: Mapping[str, Any]) -> str:
    """The line of ``Wrapped.stats()``."""
    items = stats.get("items", 0)
    hits = f", {as_percent(stats['hits'] / items)} from the cache" if items else ""
    return f"{items} items{hits}, {stats.get('read', 0)} read from the dataset"


def loader_line(stats: Mapping[str, Any]) -> str:
    """The line of ``DataLoader.stats()``."""
    parts = [f"{stats['items']} items in {stats['batches']} batches"]
    if stats["hit_share"] is not None:
        parts.append(f"{as_percent(stats['hit_share'])} from the cache")
    parts.append(f"{as_bytes(stats['origin_bytes'])} read from the origin")
    total = stats["stall_seconds"] + stats["compute_seconds"]
    if total > 0:
        share = as_percent(stats["stall_seconds"] / total)
        parts.append(f"waited {stats['stall_seconds']:.1f} s of {total:.1f} s ({share})")
    if stats["skipped"]["count"]:
        parts.append(f"{stats['skipped']['count']} items skipped")
    return ", ".join(parts)


def as_bytes(size: int) -> str:
    """A size in SI units, such as ``1.5 MB``."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if value < 999.95 or unit == "PB":
            break
    return f"{value:.1f} {unit}"


def as_percent(share: float) -> str:
    """A share in percent, such as ``97.5 %``."""
    return f"{100 * share:.1f} %"


def _of(capacity: int | None) -> str:
    return "" if capacity is None else f" of {as_bytes(capacity)}"
