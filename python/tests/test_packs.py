"""Origin bytes of jobs over packs of small items, counted with real processes, at small scale.

A batch of 256 random items of 2 KiB lies in 256 packs. What the node does not hold is therefore
drawn from a window of packs that the agent keeps until their last item is drawn
(``docs/design/sampling.md``). Without the window, these counts are 20 to 500 times larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import harness
import pytest
from harness import World

from origin_bytes import measure
from origin_bytes.settings import Setting

#: 200 MiB of small records in 25 objects.
SIZE, ITEMS, OBJECTS = 2 << 10, 102_400, 25
#: Largest ratio of origin bytes to what the node does not hold.
TARGET = 1.05


@pytest.fixture(scope="module")
def records_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    each = ITEMS // OBJECTS
    contents = [b"".join(measure.numbered(each, SIZE, first)) for first in range(0, ITEMS, each)]
    with harness.origin(tmp_path_factory.mktemp("packs"), contents=contents) as world:
        yield world


def packed(world: World, size: str) -> World:
    """The same records in packs of this size."""
    layout = ("--layout", "records", "--record-size", f"{SIZE}B", "--pack-size", size)
    return replace(world, digest=world.build(f"packs-{size}.digest", *layout))


@pytest.mark.parametrize("cache", [0.0, 0.2, 0.5])
@pytest.mark.parametrize(
    ("pack", "agent_memory"), [("248KiB", "32MiB"), ("64KiB", "8MiB")], ids=["248KiB", "64KiB"]
)
def test_small_items_of_packs_are_read_once(
    records_world: World, tmp_path: Path, pack: str, agent_memory: str, cache: float
) -> None:
    """(1 - c) of the dataset in an epoch, probes included, at most 1.05 x.

    Four packs of 248 KiB fill a region of 1 MiB, which is what a node of this size has.
    """
    setting = Setting(1, cache, batch=256, compute=0.0, agent_memory=agent_memory)
    outcome = measure.run(packed(records_world, pack), tmp_path / "node", setting, SIZE, ITEMS)
    held = outcome.later.pinned
    assert held == pytest.approx(cache, abs=0.02), outcome
    assert outcome.first.origin / outcome.first.turns <= TARGET, outcome
    assert outcome.later.origin / outcome.later.turns <= TARGET * (1.0 - held), outcome
    assert outcome.later.probed <= 0.01, "probes are bounded by bytes"


@pytest.mark.parametrize("cache", [0.0, 0.2])
def test_packs_of_the_default_size_are_read_once(
    records_world: World, tmp_path: Path, cache: float
) -> None:
    """The agent has memory for eleven packs. The node pins less than it could, because a region
    holds one pack and a half-chunk few.
    """
    setting = Setting(1, cache, batch=256, compute=0.0, agent_memory="32MiB")
    outcome = measure.run(packed(records_world, "960KiB"), tmp_path / "node", setting, SIZE, ITEMS)
    held = outcome.later.pinned
    assert cache * 0.4 <= held <= cache, outcome
    assert outcome.first.origin / outcome.first.turns <= TARGET, outcome
    assert outcome.later.origin / outcome.later.turns <= TARGET * (1.0 - held), outcome
