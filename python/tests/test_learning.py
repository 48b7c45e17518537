"""A URL that is read for the first time: its addresses are learned in the first epoch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import CONTENTS, ITEMS, World

import forebay

URL = "s3://bucket/train"
#: Objects that are read from the origin: an empty one is not.
READ = sum(map(bool, CONTENTS))

#: A job that reads one epoch in two workers and prints how many items it got.
JOB = """
import json, sys
import forebay
options = json.loads(sys.argv[1])
if __name__ == "__main__":
    dataset = forebay.Dataset("s3://bucket/train", storage_options=options)
    loader = forebay.DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=2, collate_fn=list
    )
    print("ready", flush=True)
    sys.stdin.readline()
    items = [item for batch in loader for item in batch]
    print(len(items), len(set(items)))
"""


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[World]:
    with harness.origin(tmp_path / "new") as world:
        yield world


def dataset_of(world: World, **options: Any) -> forebay.Dataset[bytes]:
    return forebay.Dataset(URL, storage_options=world.options, **options)


def loader_of(dataset: Any, **options: Any) -> forebay.DataLoader:
    return forebay.DataLoader(dataset, batch_size=16, shuffle=True, collate_fn=list, **options)


def items_of(loader: Any) -> list[Any]:
    return [item for batch in loader for item in batch]


def gets(world: World) -> Counter[str]:
    """Reads of each object."""
    objects = world.counters()["objects"]
    return Counter({name: count["gets"] for name, count in objects.items() if count["gets"]})


def digests() -> list[Path]:
    return sorted((Path(os.environ["XDG_CACHE_HOME"]) / "forebay" / "digests").glob("*.digest"))


def test_a_new_url_starts_after_a_listing_and_is_read_once(new_world: World) -> None:
    """Promise 3 for a new URL; the digest is complete at the end of the first epoch."""
    dataset = dataset_of(new_world)
    assert len(dataset) == ITEMS
    assert not gets(new_world), "a listing only"
    assert digests() == []
    loader = loader_of(dataset)
    assert sorted(items_of(loader)) == sorted(CONTENTS)
    assert set(gets(new_world).values()) == {1}
    assert gets(new_world).total() == READ
    assert len(digests()) == 1

    assert sorted(items_of(loader)) == sorted(CONTENTS)
    again = dataset_of(new_world)
    assert again._learning is None
    assert again._id == dataset._id
    assert sorted(items_of(loader_of(again))) == sorted(CONTENTS)
    assert gets(new_world).total() == READ, "later epochs and jobs read the cache"
    built = new_world.build("built.digest")
    assert forebay.Dataset(built)._digest.dataset == again._digest.dataset


def test_two_jobs_that_start_together_read_each_object_once(
    new_world: World, tmp_path: Path
) -> None:
    """Promise 3: until its address is known, an object is claimed by its version."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    command = [sys.executable, str(script), json.dumps(new_world.options)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    jobs = [subprocess.Popen(command, **pipes) for _ in range(2)]
    try:
        for job in jobs:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
        for job in jobs:
            assert job.stdin is not None
            job.stdin.write("\n")
            job.stdin.flush()
        printed = [job.communicate(timeout=120)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert printed == [f"{ITEMS} {len(set(CONTENTS))}\n"] * 2
    assert set(gets(new_world).values()) == {1}
    assert gets(new_world).total() == READ


@pytest.mark.parametrize("is_known_later", [False, True])
def test_a_first_epoch_continues_from_its_state(new_world: World, is_known_later: bool) -> None:
    """Promise 2: exactly once, also when the digest has become complete meanwhile."""
    loader = loader_of(dataset_of(new_world))
    batches = iter(loader)
    first = [item for _ in range(5) for item in next(batches)]
    state = loader.state_dict()
    if is_known_later:
        items_of(batches)
        assert len(digests()) == 1
    del batches
    dataset = dataset_of(new_world)
    assert (dataset._learning is None) == is_known_later
    resumed = loader_of(dataset)
    resumed.load_state_dict(state)
    assert sorted(first + items_of(resumed)) == sorted(CONTENTS)
    assert set(gets(new_world).values()) == {1}


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_learn_and_use_the_digest_later(new_world: World, persistent: bool) -> None:
    dataset = dataset_of(new_world)
    loader = loader_of(dataset, num_workers=2, persistent_workers=persistent)
    for epoch in range(3):
        assert sorted(items_of(loader)) == sorted(CONTENTS), epoch
        assert set(gets(new_world).values()) == {1}
        assert len(digests()) == 1
    assert dataset._learning is None


def test_what_is_left_after_an_epoch_is_read_before_the_next(new_world: World) -> None:
    """With ``drop_last``, an epoch leaves a part of a batch."""
    dataset = dataset_of(new_world)
    options: dict[str, Any] = {"shuffle": True, "drop_last": True, "collate_fn": list}
    loader = forebay.DataLoader(dataset, batch_size=8, **options)
    assert len(items_of(loader)) == ITEMS // 8 * 8
    assert digests() == []
    assert dataset._learning is not None
    items_of(loader)
    assert dataset._learning is None
    assert gets(new_world).total() == READ
    assert set(gets(new_world).values()) == {1}


def test_a_changed_url_reads_what_has_changed(
    new_world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    """Incremental: by version and length. The rest is found in the cache, under its address."""
    before = dataset_of(new_world)
    items_of(loader_of(before))
    (new_world.objects / "00003.bin").write_bytes(b"changed")
    (new_world.objects / "00004.bin").unlink()
    (new_world.objects / "99999.bin").write_bytes(b"new")
    new_world.reset_counters()
    after = dataset_of(new_world)
    assert after._learning is None, "the digest is complete at once"
    assert after._id != before._id
    expected = [b"changed", *CONTENTS[:3], *CONTENTS[5:], b"new"]
    assert sorted(items_of(loader_of(after))) == sorted(expected)
    assert gets(new_world) == {"bucket/train/00003.bin": 1, "bucket/train/99999.bin": 1}


def test_a_digest_that_was_built_is_not_read_again(new_world: World) -> None:
    """The digest of a job without a node; a later job with one reads the rest as it needs it."""
    dataset_of(new_world, cache=None)
    (new_world.objects / "00003.bin").write_bytes(b"changed")
    new_world.reset_counters()
    dataset = dataset_of(new_world)
    assert dataset._learning is None
    assert gets(new_world) == {"bucket/train/00003.bin": 1}
    assert dataset[3] == b"changed"


def test_an_origin_that_is_gone_is_no_error_after_the_first_listing(tmp_path: Path) -> None:
    """Promise 5."""
    with harness.origin(tmp_path / "gone") as world:
        world.options["deadline_seconds"] = 1
        first = dataset_of(world)
        known = [first[item] for item in range(10)]
    again = dataset_of(world)
    assert [again[item] for item in range(10)] == known


def test_agents_and_nodes_may_die_while_addresses_are_learned(new_world: World) -> None:
    """Promises 2 and 5."""
    dataset = dataset_of(new_world)
    loader = loader_of(dataset)
    items = []
    for number, batch in enumerate(loader):
        items += batch
        if number == 2:
            assert dataset._learning is not None
            harness.kill(harness.listener(dataset._learning.items.dataset._job.socket))
        if number == 4:
            node = dataset._job.node
            assert isinstance(node, Path)
            harness.kill(harness.listener(node))
    assert sorted(items) == sorted(CONTENTS)
    assert len(digests()) == 1


def test_parts_and_labels_work_meanwhile(new_world: World) -> None:
    for item in range(20):
        target = new_world.objects / ("even" if item % 2 == 0 else "odd")
        target.mkdir(exist_ok=True)
        shutil.move(new_world.objects / f"{item:05}.bin", target)
    for item in range(20, ITEMS):
        (new_world.objects / f"{item:05}.bin").unlink()
    dataset = forebay.Dataset(URL, labels="directory", storage_options=new_world.options)
    assert dataset._learning is not None
    assert dataset.classes == ("even", "odd")
    train, test = dataset.split(0.75, seed=1)
    both = [item for part in (train, test) for batch in loader_of(part) for item in batch]
    expected = [(CONTENTS[item], item % 2) for item in range(20)]
    assert sorted(both) == sorted(expected)
    assert sorted(items_of(loader_of(train)) + items_of(loader_of(test))) == sorted(expected)
    assert set(gets(new_world).values()) == {1}
    stats = train.stats()
    assert stats["node"] is not None
    assert stats["agent"] is not None


def test_a_listing_is_not_a_digest(new_world: World, tmp_path: Path) -> None:
    dataset = dataset_of(new_world)
    (listing,) = (Path(os.environ["XDG_CACHE_HOME"]) / "forebay" / "digests").glob("*.listing")
    with pytest.raises(forebay.DigestError, match="is a listing of objects"):
        forebay.Dataset(listing)
    assert len(dataset) == ITEMS


def test_an_object_that_changes_before_it_is_read_is_an_error(new_world: World) -> None:
    """Promise 1: two versions of an object are never mixed."""
    dataset = dataset_of(new_world)
    (new_world.objects / "00003.bin").write_bytes(b"changed")
    with pytest.raises(forebay.ChangedError):
        dataset[3]
    assert dataset[4] == CONTENTS[4]
    assert dataset_of(new_world)[3] == b"changed"


def test_a_rebuilt_digest_has_the_id_of_its_listing(new_world: World) -> None:
    """A state continues after ``rebuild=True``."""
    learned = dataset_of(new_world)
    rebuilt = dataset_of(new_world, rebuild=True)
    assert rebuilt._learning is None
    assert rebuilt._id == learned._id == dataset_of(new_world)._id


@pytest.mark.parametrize("node", ["auto", None])
def test_urls_of_something_else_are_pointed_out(new_world: World, node: str | None) -> None:
    with pytest.raises(forebay.DigestError, match="is one object; give the prefix"):
        dataset_of_url(new_world, f"{URL}/00003.bin", cache=node)
    with pytest.raises(forebay.DigestError, match="check the prefix"):
        dataset_of_url(new_world, "s3://bucket/nothing", cache=node)
    for item in (3, 4):
        (new_world.objects / "tars").mkdir(exist_ok=True)
        (new_world.objects / "tars" / f"{item}.tar").write_bytes(CONTENTS[item])
    with pytest.warns(RuntimeWarning, match="2 of 2 objects are tar archives.*layout='tar'"):
        dataset_of_url(new_world, f"{URL}/tars", cache=node)


def dataset_of_url(world: World, url: str, **options: Any) -> forebay.Dataset[bytes]:
    return forebay.Dataset(url, storage_options=world.options, **options)
