"""``verify``: what a job reads is hashed, and wrong bytes are never given to it (promise 1)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import CONTENTS, ITEMS, World

import forebay
from forebay._runtime.processes import binary

#: Items that have bytes, so that these can be wrong.
FULL = sum(1 for content in CONTENTS if content)


@contextmanager
def hostile_node(directory: Path) -> Iterator[str]:
    """The endpoint of a node that returns wrong bytes, and behind it a real one."""
    directory.mkdir(mode=0o700)
    command = [binary(), "serve", "--socket", str(directory / "node.sock")]
    command += ["--directory", str(directory / "blobs"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        address = json.loads(node.stdout.readline())["listen"]
        script = [sys.executable, str(Path(__file__).with_name("hostile_node.py")), address]
        with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as hostile:
            assert hostile.stdout is not None
            try:
                yield f"tcp://127.0.0.1:{hostile.stdout.readline().strip()}"
            finally:
                for process in (hostile, node):
                    process.terminate()
                    process.wait(timeout=10)


def read(loader: forebay.DataLoader) -> list[bytes]:
    return sorted(item for batch in loader for item in batch)


def test_a_hostile_node_does_not_reach_the_job(world: World, tmp_path: Path) -> None:
    with hostile_node(tmp_path / "n") as cache:
        # Fills the real node, through the hostile one: puts are not changed.
        list(world.dataset(cache=cache))
        trusting = list(world.dataset(cache=cache, verify="never"))
        assert trusting != CONTENTS, "without verification the job gets wrong bytes"
        for options in ({"digest": world.digest}, {"views": True}):
            dataset = world.dataset(cache=cache, **options)
            dataset.stats()  # starts the agent, without which a wrong batch is read twice
            assert [bytes(item) for item in dataset] == CONTENTS
            loader = dataset.stats()["loader"]
            assert loader is not None
            assert loader["items_verified"] == loader["hash_mismatches"] == FULL
            agent = dataset.stats()["agent"]
            assert agent is not None
            assert agent["agent_wrong_bytes_reported"] == FULL


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_verify_and_count(world: World, tmp_path: Path, workers: int) -> None:
    digest = world.build("verified.digest", "--layout", "pack", "--pack-size", "100kB")
    with hostile_node(tmp_path / "n") as cache:
        list(world.dataset(digest=digest, cache=cache))
        dataset = world.dataset(digest=digest, cache=cache)
        loader = forebay.DataLoader(
            dataset, batch_size=16, shuffle=True, collate_fn=list, num_workers=workers
        )
        assert read(loader) == sorted(CONTENTS)
        stats = loader.stats()
        # A batch that is read before the agent has started is read and verified again.
        assert stats["items_verified"] >= FULL, "items inside packs, too"
        assert 0 < stats["hash_mismatches"] <= stats["items_verified"]


@pytest.mark.parametrize("layout", ["files", "pack"])
@pytest.mark.parametrize("views", [False, True])
def test_a_sound_node_of_this_machine(world: World, layout: str, views: bool) -> None:
    digest = world.build(f"{layout}.digest", "--layout", layout)
    list(world.dataset(digest=digest))
    for verify, verified in (("always", FULL), (1, FULL), ("remote", 0), ("never", 0), (0.0, 0)):
        dataset = world.dataset(digest=digest, views=views, verify=verify)
        assert [bytes(item) for item in dataset] == CONTENTS
        loader = dataset.stats()["loader"]
        assert loader is not None
        counts = (loader["items_verified"], loader["hash_mismatches"])
        assert counts == (verified, 0), verify


@pytest.mark.parametrize("verify", ["sometimes", 1.5, -0.1, True, None, float("nan")])
def test_other_values_are_refused(world: World, verify: Any) -> None:
    with pytest.raises(ValueError, match=r"there is no verify=.*a share from 0 to 1"):
        world.dataset(verify=verify)


def test_a_private_namespace_is_verified_with_its_key(world: World, tmp_path: Path) -> None:
    key = tmp_path / "own.key"
    subprocess.run([binary(), "namespace", "new", str(key)], check=True, capture_output=True)
    digest = world.build("private.digest", "--namespace-key", str(key))
    dataset = world.dataset(digest=digest, namespace_key=key, verify="always", cache=None)
    assert list(dataset) == CONTENTS
    loader = dataset.stats()["loader"]
    assert loader is not None
    assert (loader["items_verified"], loader["hash_mismatches"]) == (FULL, 0)
    assert len(dataset) == ITEMS
