"""Origin bytes of a job whose agent has memory for few objects, counted with real processes.

A prefetched object that leaves the agent's memory before it is read is fetched twice. The agent
fetches up to 48 objects at a time, so those in flight count against its memory, too.
"""

from __future__ import annotations

from pathlib import Path

import harness
import pytest

from origin_bytes import measure
from origin_bytes.settings import Setting

#: 100 MiB in objects of which the agent keeps eight.
SIZE, ITEMS = 512 << 10, 200


@pytest.mark.parametrize("cache", [0.0, 0.2])
def test_read_ahead_stays_within_the_memory_of_the_agent(tmp_path: Path, cache: float) -> None:
    contents = list(measure.numbered(ITEMS, SIZE))
    with harness.origin(tmp_path / "origin", contents=contents) as world:
        setting = Setting(1, cache, batch=8, compute=0.0, agent_memory="4MiB")
        outcome = measure.run(world, tmp_path / "node", setting, SIZE, ITEMS)
    held = outcome.later.pinned
    assert outcome.first.origin / outcome.first.turns <= 1.05, outcome
    assert outcome.later.origin / outcome.later.turns <= 1.05 * (1.0 - held), outcome
