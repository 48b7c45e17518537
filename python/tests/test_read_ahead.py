"""Read-ahead within the memory of the agent: nothing is fetched twice."""

from __future__ import annotations

from pathlib import Path

import harness
import pytest

import forebay

#: Objects of 512 KiB, eight of which fit into the agent's memory.
OBJECTS = 96
SIZE = 512 << 10


@pytest.mark.parametrize("workers", [0, 2])
def test_each_object_is_fetched_once_per_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Prefetched blobs stay until they are read: later epochs read 1.00 of the dataset at most."""
    monkeypatch.setenv("FOREBAY_AGENT_MEMORY", "4MiB")
    contents = [item.to_bytes(2, "big") * (SIZE // 2) for item in range(OBJECTS)]
    with harness.origin(tmp_path, contents=contents) as world:
        dataset = world.dataset(cache=None)
        loader = forebay.DataLoader(
            dataset, batch_size=4, num_workers=workers, shuffle=True, collate_fn=list
        )
        for _ in range(3):
            world.reset_counters()
            assert sum(len(batch) for batch in loader) == OBJECTS
            # A few objects of the last epoch may be in memory still.
            objects = world.counters()["objects"].values()
            assert max(one["gets"] for one in objects) == 1
