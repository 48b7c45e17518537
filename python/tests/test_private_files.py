"""What other users put into shared directories never raises, blocks or fills a job's memory."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import CONTENTS, World

from forebay._runtime import private_files
from forebay._runtime.job import OWNER, PREFIX
from forebay._runtime.processes import identity, locked

#: A user without any files of its own.
ATTACKER = 65534
#: A job that a trap holds for ever fails after this time.
DEADLINE_SECONDS = 60

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files that every user can write to, as ``/tmp``."""
    directory = Path(tempfile.mkdtemp(prefix="fb-shared-", dir="/tmp"))
    directory.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Turn a wait for ever into a failure."""

    def expire(*_: object) -> None:
        pytest.fail(f"blocked for {DEADLINE_SECONDS} s")  # no code suppresses this exception

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(DEADLINE_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def as_attacker(act: Callable[[], object]) -> None:
    """Call ``act`` in a process of another user."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(ATTACKER)
            os.setuid(ATTACKER)
            os.umask(0)
            act()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def not_text(owner: Path) -> None:
    owner.write_bytes(b"\xff")


def not_a_process(owner: Path) -> None:
    owner.write_text(" ".join(["abc", *identity(os.getpid()).split(" ")[1:]]))


def a_huge_process(owner: Path) -> None:
    owner.write_text(" ".join(["9" * 40, *identity(os.getpid()).split(" ")[1:]]))


def a_pipe(owner: Path) -> None:
    os.mkfifo(owner)


def an_endless_device(owner: Path) -> None:
    owner.symlink_to("/dev/zero")


def a_link_to_a_secret(owner: Path) -> None:
    owner.symlink_to("/etc/shadow")


def a_directory(owner: Path) -> None:
    owner.mkdir()


TRAPS = [
    not_text,
    not_a_process,
    a_huge_process,
    a_pipe,
    an_endless_device,
    a_link_to_a_secret,
    a_directory,
]


def lay(trap: Callable[[Path], None], shared: Path) -> Path:
    directory = shared / f"{PREFIX}{trap.__name__}"
    directory.mkdir(mode=0o777)
    trap(directory / OWNER)
    return directory


@as_root
@pytest.mark.parametrize("trap", TRAPS)
def test_another_users_directory_does_not_touch_a_job(
    world: World, shared: Path, trap: Callable[[Path], None]
) -> None:
    """Promise 5."""
    as_attacker(lambda: lay(trap, shared))
    assert world.dataset(cache=None)[0] == CONTENTS[0]


@pytest.mark.parametrize("trap", TRAPS)
def test_an_own_damaged_directory_does_not_touch_a_job(
    world: World, shared: Path, trap: Callable[[Path], None]
) -> None:
    left = lay(trap, shared)
    assert world.dataset(cache=None)[0] == CONTENTS[0]
    assert left.exists(), "what is no identity is not removed"


@as_root
def test_another_users_ended_job_is_left_alone(world: World, shared: Path) -> None:
    ended = " ".join(["999999999", *identity(os.getpid()).split(" ")[1:]])
    left = shared / f"{PREFIX}theirs"

    def lay_an_ended_job() -> None:
        left.mkdir(mode=0o777)
        (left / OWNER).write_text(ended)

    as_attacker(lay_an_ended_job)
    assert world.dataset(cache=None)[0] == CONTENTS[0]
    assert left.exists()


def squatted(shared: Path, node: Path) -> None:
    node.parent.mkdir(mode=0o777)


def linked(shared: Path, node: Path) -> None:
    node.parent.symlink_to(shared / "of the victim")


@as_root
@pytest.mark.parametrize("way", [squatted, linked])
def test_no_node_is_started_in_a_directory_of_another_user(
    world: World,
    shared: Path,
    way: Callable[[Path, Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    victims = shared / "of the victim"
    victims.mkdir(mode=0o700)
    node = shared / "forebay-0" / "node.sock"
    as_attacker(lambda: way(shared, node))
    monkeypatch.setenv("FOREBAY_SOCKET", str(node))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert world.dataset()[0] == CONTENTS[0]
    assert any("belongs to another user" in str(warning.message) for warning in warned)
    assert not list(victims.iterdir()), "nothing was created where the link points"


@as_root
def test_files_of_another_user_are_not_opened(shared: Path) -> None:
    lock = shared / "lock"
    as_attacker(lock.touch)
    for act in (
        lambda: private_files.read_private(lock, 1),
        lambda: private_files.write_private(lock, b""),
        lambda: locked(lock).__enter__(),
    ):
        with pytest.raises(PermissionError, match=f"belongs to user {ATTACKER}"):
            act()


def test_reads_are_bounded_and_new_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    private_files.write_private(path, b"12345")
    assert private_files.read_private(path, 3) == b"123"
    assert path.stat().st_mode & 0o777 == 0o600
    private_files.write_private(path, b"6")
    assert private_files.read_private(path, 3) == b"6"
