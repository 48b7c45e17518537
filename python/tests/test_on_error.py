"""``on_error``: items that cannot be read are skipped, retried or raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import CONTENTS, ITEMS, World

import forebay

BROKEN = 42

WORKERS: list[dict[str, Any]] = [{}, {"num_workers": 2}]


def decoder_except(some: slice) -> Callable[[bytes], bytes]:
    """A transform that fails for some of the items."""

    def decode(item: bytes) -> bytes:
        if item in CONTENTS[some]:
            raise ValueError("no image")
        return item

    return decode


@pytest.fixture
def broken_world(slow_world: World) -> World:
    (slow_world.objects / f"{BROKEN:05}.bin").write_bytes(b"something else")
    return slow_world


@pytest.mark.filterwarnings("ignore:item:RuntimeWarning")
@pytest.mark.parametrize("workers", WORKERS, ids=["alone", "workers"])
def test_skipped_items_are_counted_and_named(broken_world: World, workers: Any) -> None:
    dataset = broken_world.dataset(cache=None, on_error="skip")
    loader = forebay.DataLoader(dataset, batch_size=16, shuffle=True, collate_fn=list, **workers)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [16] * 12 + [11], "batches keep their length"
    seen = Counter(item for batch in batches for item in batch)
    assert set(seen) == set(CONTENTS) - {CONTENTS[BROKEN]}
    assert sum(seen.values()) == ITEMS
    assert loader.stats()["skipped"] == {"count": 1, "items": [BROKEN]}


@pytest.mark.filterwarnings("ignore:item:RuntimeWarning")
def test_items_whose_transform_fails_are_skipped(world: World) -> None:
    decode = decoder_except(slice(16, 48))
    dataset = world.dataset(cache=None, transform=decode)
    loader = forebay.DataLoader(dataset, batch_size=16, on_error="skip", collate_fn=list)
    batches = list(loader)
    # Nothing of two batches is readable: the last readable item substitutes.
    assert batches[1] == batches[2] == [CONTENTS[15]] * 16
    assert batches[3] == CONTENTS[48:64]
    assert loader.stats()["skipped"]["items"] == list(range(16, 48))
    with pytest.raises(ValueError, match="no image"):
        dataset[20]
    dataset = world.dataset(cache=None, transform=decode, on_error="skip")
    with pytest.raises(ValueError, match="no image"):
        dataset.__getitems__([20, 21])


def test_retries_are_limited(slow_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (slow_world.objects / f"{BROKEN:05}.bin").unlink()
    pauses = list[float]()
    monkeypatch.setattr("forebay._data.dataset.time.sleep", pauses.append)
    dataset = slow_world.dataset(cache=None, on_error="retry")
    with pytest.raises(forebay.ReadError, match=r"00042\.bin"):
        dataset[BROKEN]
    assert pauses == [0.1, 0.5, 2.0, 5.0]
    assert dataset[BROKEN + 1] == CONTENTS[BROKEN + 1]


def test_a_changed_object_is_not_retried(
    broken_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()
    monkeypatch.setattr("forebay._data.dataset.time.sleep", pauses.append)
    dataset = broken_world.dataset(cache=None, on_error="retry")
    with pytest.raises(forebay.ChangedError, match=r"00042\.bin.* has changed"):
        dataset[BROKEN]
    assert pauses == []


def test_a_retry_reads_a_repaired_object(
    broken_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = broken_world.dataset(
        cache=None, on_error="retry", origin=f"file://{broken_world.objects}"
    )

    def repair(_: float) -> None:
        (broken_world.objects / f"{BROKEN:05}.bin").write_bytes(CONTENTS[BROKEN])

    monkeypatch.setattr("forebay._data.dataset.time.sleep", repair)
    assert dataset[BROKEN] == CONTENTS[BROKEN]


def test_invalid_values_are_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no on_error='ignore'"):
        world.dataset(cache=None, on_error="ignore")
    with pytest.raises(ValueError, match="batch_size=None"):
        forebay.DataLoader(world.dataset(cache=None), batch_size=None, on_error="skip")


def test_the_first_skipped_items_are_warned_about(world: World) -> None:
    decode = decoder_except(slice(20, 40))
    dataset = world.dataset(cache=None, transform=decode)
    loader = forebay.DataLoader(dataset, batch_size=16, on_error="skip", collate_fn=list)
    with pytest.warns(RuntimeWarning) as warned:
        list(loader)
    texts = [str(one.message) for one in warned]
    assert len(texts) == 3
    assert texts[0] == "item 20 is skipped: ValueError: no image"
    assert "further skipped items are not warned about" in texts[2]
    assert loader.stats()["skipped"]["count"] == 20
