"""The warning that a node's cache is too small to keep anything of a dataset."""

from __future__ import annotations

from forebay._data.wrap import Source
from forebay._runtime.warnings import warn

#: Regions that a node keeps free, at least, and the least number of regions by which it chooses
#: their size (`docs/guide/node.md`).
SPARE_REGIONS, REGIONS = 3, 256
#: Sizes of regions that a node chooses.
REGION_MIN, REGION_MAX = 1 << 20, 64 << 20
#: The head of a device, and the fraction of blobs that regions take beside them.
HEAD, OVERHEAD = 1 << 20, 0.1

#: Ids of the datasets that were warned of in this process.
_warned = set[str]()


def capacity_needed(kept_min: int) -> int:
    """The smallest ``capacity`` of a node that keeps ``kept_min`` bytes of a dataset."""
    kept = int(kept_min * (1.0 + OVERHEAD))
    region = min(REGION_MAX, max(REGION_MIN, 1 << max(0, (kept // REGIONS).bit_length() - 1)))
    return HEAD + kept + (SPARE_REGIONS + 1) * region


def warn_if_nothing_fits(dataset: Source, capacity: int) -> None:
    """Warn, once per dataset, if a node of this capacity keeps nothing of it."""
    layout = dataset._layout_made
    if layout is None or dataset._id in _warned:
        return  # only order="substitute" has a layout, and a cache that is managed
    needed = capacity_needed(layout.kept_min())
    if capacity >= needed - HEAD:
        return
    _warned.add(dataset._id)
    size = -(-needed // 1_000_000)
    warn(
        f"the node's cache of {capacity / 1e6:.1f} MB is too small to keep any of the dataset, so "
        f"every epoch reads the origin; set its `capacity` (or FOREBAY_CAPACITY) to {size} MB or "
        "more"
    )
