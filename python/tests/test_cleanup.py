"""A job leaves nothing in the directory for temporary files, however it ends."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import pytest
from harness import CONTENTS, World

import forebay
from forebay._runtime.processes import identity

#: Timeout of the cleanup on a busy machine; workers check for their parent periodically.
TIMEOUT = 30.0

WAYS: dict[str, Callable[[], None]] = {
    "_exit": lambda: os._exit(3),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def in_a_job(act: Callable[[], object], end: Callable[[], None]) -> None:
    """Call ``act`` in a new process, which ends with ``end``."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _alive_until_the_end = act()
            end()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (3, -signal.SIGTERM, -signal.SIGKILL)
    # Workers that notice later would start a node that is not stopped.
    harness.wait_until(lambda: not harness.of_session(child), TIMEOUT)


def only_creates(world: World) -> object:
    return world.dataset()


def hits(world: World) -> object:
    dataset = world.dataset()
    assert dataset[0] == CONTENTS[0]
    return dataset


def misses(world: World) -> object:
    dataset = world.dataset(cache=None)
    assert dataset[0] == CONTENTS[0]
    return dataset


def wraps(world: World) -> object:
    dataset = forebay.wrap(CONTENTS, name="contents")
    assert dataset[3] == CONTENTS[3]
    return dataset


def uses_workers(world: World, **options: Any) -> object:
    options |= {"num_workers": 2, "multiprocessing_context": "fork"}
    epoch = iter(forebay.DataLoader(world.dataset(transform=len), batch_size=8, **options))
    assert next(epoch).tolist() == list(map(len, CONTENTS[:8]))
    return epoch


def starts_a_worker_late(worker: int) -> None:
    """The second worker begins when the job has ended, as on a busy machine."""
    if worker == 1:
        time.sleep(2.0)


def has_a_late_worker(world: World) -> object:
    return uses_workers(world, worker_init_fn=starts_a_worker_late)


ACTS = [only_creates, hits, misses, wraps, uses_workers, has_a_late_worker]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("act", ACTS)
def test_nothing_is_left(
    world: World, temporary: Path, act: Callable[[World], object], way: str
) -> None:
    assert list(world.dataset()) == CONTENTS, "the node has all items"
    in_a_job(lambda: act(world), WAYS[way])
    harness.wait_until(lambda: not list(temporary.iterdir()), TIMEOUT)


def left_by_a_killed_job(world: World, temporary: Path) -> Path:
    """The directory of a job that is killed after its agent."""
    before = set(temporary.iterdir())

    def kills_its_agent() -> object:
        dataset = world.dataset(cache=None)
        assert dataset[0] == CONTENTS[0]
        agent = harness.listener(harness.agent_socket(dataset))
        harness.kill(agent)
        harness.wait_until(lambda: not harness.lives(agent))
        return dataset

    in_a_job(kills_its_agent, WAYS["SIGKILL"])
    (left,) = set(temporary.iterdir()) - before
    return left


def test_the_next_job_removes_directories_of_killed_jobs(world: World, temporary: Path) -> None:
    living = world.dataset(cache=None)
    assert living[0] == CONTENTS[0]
    harness.kill(harness.listener(harness.agent_socket(living)))
    left = left_by_a_killed_job(world, temporary)
    elsewhere = left_by_a_killed_job(world, temporary)
    # A process of another container may have any number, and be alive.
    owner = elsewhere / "owner"
    assert owner.read_text().split()[-1] == identity(os.getpid()).split()[-1]
    owner.write_text(owner.read_text().replace("pid:[", "pid:[1"))
    unknown = temporary / "forebay-job-unknown"
    unknown.mkdir()
    another = world.dataset(cache=None)
    assert another[0] == CONTENTS[0]
    assert not left.exists()
    kept = {elsewhere, unknown, *(Path(one._job.directory) for one in (living, another))}
    assert set(temporary.iterdir()) == kept
    assert living[1] == CONTENTS[1]
