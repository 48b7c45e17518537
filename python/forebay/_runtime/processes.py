"""Starting the ``forebay`` binary and waiting until it serves.

A node and an agent announce themselves alike: one line on standard output when they are ready, one
line on standard error when they cannot be. Whoever wants one takes a lock first, so that all who
come at once start one.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from forebay import _native
from forebay._native import ForebayError

#: A process that is not ready by then is given up; checking a large digest takes most of it.
START_SECONDS = 60.0

#: Whoever is not hung answers a greeting by then.
ANSWER_SECONDS = 2.0

#: ``struct ucred``: process, user and group.
_PEER = struct.Struct("iII")

#: The binary that the wheel carries.
OWN = Path(__file__).parent / "_bin" / "forebay"

#: Processes that were started here; those which have ended are reaped when another is.
_children: set[int] = set()


def binary() -> str:
    """The ``forebay`` binary: ``$FOREBAY_BIN``, the wheel's own, or the one on the ``PATH``."""
    named = os.environ.get("FOREBAY_BIN")
    if named:
        if not os.access(named, os.X_OK):
            raise ForebayError(f"FOREBAY_BIN is `{named}`, which is no program; unset it")
        return named
    if OWN.is_file():
        return str(OWN)
    found = shutil.which("forebay")
    if found is None:
        raise ForebayError(
            "the program `forebay` is neither in this package nor on the PATH; "
            "install it, or set FOREBAY_BIN"
        )
    return found


def main() -> None:
    """The command ``forebay`` of an environment: the wheel's own binary in its place."""
    os.execv(OWN, [str(OWN), *sys.argv[1:]])


def answers(node: Path | str, seconds: float = ANSWER_SECONDS) -> bool:
    """Whether a node or an agent listens there and is not hung."""
    return _native.answers(node, seconds)


def listener(path: Path) -> int | None:
    """The process that listens at a socket, hung or not."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ANSWER_SECONDS)
        try:
            probe.connect(str(path))
        except OSError:
            return None
        peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid: int = _PEER.unpack(peer)[0]
    return pid or None


def kill_listener(path: Path) -> None:
    """Kill the process that listens at a socket, if there is one, and see it gone."""
    pid = listener(path)
    if pid is None:
        return
    with suppress(ProcessLookupError):
        ending = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGKILL)
            select.select([ending], [], [], ANSWER_SECONDS)
        finally:
            os.close(ending)


def identity(pid: int) -> str:
    """What tells a process from all others that ever had its number, here or in other containers
    and machines; empty if there is none, or it cannot be known.
    """
    try:
        began = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        return f"{pid} {began} {_world()}"
    except OSError:
        return ""


def has_gone(process: str) -> bool:
    """Whether it is certain that a process with this identity is not there any more."""
    pid, _, world = process.split(" ", 2) if process.count(" ") > 1 else ("", "", "")
    try:
        if not pid or world != _world():
            return False  # its numbers mean nothing here
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _world() -> str:
    """Where a process's number means the same process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{os.readlink('/proc/self/ns/pid')} {boot}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; it ends with the process, whatever ends that."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


#: Lines of a log begin with the time.
_LOGGED = re.compile(r"\d{4}-\d\d-\d\dT")

#: The environment's credentials begin like this. Who shares a node shares none of them with it.
SECRETS = ("AWS_", "AZURE_", "GOOGLE_")


def start(
    arguments: list[str], log: Path, options: bytes = b"", *, with_secrets: bool = False
) -> None:
    """Start a process that outlives this one, and wait until it is ready.

    ``options`` go through a pipe: they may hold secrets, and anyone can read arguments.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if with_secrets or not name.startswith(SECRETS)
    }
    _reap()
    with log.open("wb") as errors:
        child = subprocess.Popen(
            [binary(), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,  # a Ctrl-C is meant for the job
        )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        try:
            child.stdin.write(options)
            child.stdin.close()
        except BrokenPipeError:
            pass  # it has ended; what it said follows
        if _line_within(child.stdout.fileno(), START_SECONDS):
            _children.add(child.pid)
            child.returncode = 0  # nobody waits for it: without this Python complains at the end
            return
    child.kill()
    child.wait()
    raise ForebayError(_reason(log) or f"it does not say why it is not ready; see `{log}`")


def _reason(log: Path) -> str:
    """Why a process could not start, by its own account: the last line that is not of its log."""
    lines = log.read_text(errors="replace").strip().splitlines()
    said = [line for line in lines if not _LOGGED.match(line)]
    return said[-1].removeprefix("error: ") if said else ""


def _reap() -> None:
    for pid in list(_children):
        ended = True
        with suppress(ChildProcessError):  # somebody else's: we have been forked
            ended = os.waitpid(pid, os.WNOHANG) != (0, 0)
        if ended:
            _children.discard(pid)


def _line_within(descriptor: int, seconds: float) -> bool:
    """Whether a whole line arrives in time."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        more = os.read(descriptor, 4096) if ready else b""
        if not more:
            return False
        line += more
    return True
