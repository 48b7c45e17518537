"""Processes of the ``forebay`` binary: nodes and agents that are started, greeted or killed.

A node or an agent writes one line to standard output when it is ready, or one line to standard
error if it cannot start. Callers take a lock first, so that concurrent callers start one process.
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
from forebay._runtime.private_files import open_private, read_private

#: Time in which a process must be ready; checking a large digest takes most of it.
START_SECONDS = 60.0

#: Time in which a process that is not hung answers a greeting.
ANSWER_SECONDS = 2.0

#: ``struct ucred``: process, user and group.
_UCRED = struct.Struct("iII")

#: The binary in the wheel.
BUNDLED = Path(__file__).parents[1] / "_bin" / "forebay"

#: Processes that this one has started; ended ones are reaped when another is started.
_children: set[int] = set()


def binary() -> str:
    """The ``forebay`` binary: ``$FOREBAY_BIN``, the wheel's own, or the one on the ``PATH``."""
    from_environment = os.environ.get("FOREBAY_BIN")
    if from_environment:
        if not os.access(from_environment, os.X_OK):
            raise ForebayError(
                f"FOREBAY_BIN is `{from_environment}`, which is not an executable file; unset it"
            )
        return from_environment
    if BUNDLED.is_file():
        return str(BUNDLED)
    found = shutil.which("forebay")
    if found is None:
        raise ForebayError(
            "there is no binary `forebay` in this package or on the PATH; install it, or set"
            " FOREBAY_BIN"
        )
    return found


def main() -> None:
    """The command ``forebay`` of a Python environment: runs the wheel's binary."""
    os.execv(BUNDLED, [str(BUNDLED), *sys.argv[1:]])


def answers(node: Path | str, seconds: float = ANSWER_SECONDS) -> bool:
    """Whether a node or an agent answers a greeting within ``seconds``."""
    return _native.answers(node, seconds)


def listener(path: Path) -> int | None:
    """The process that listens at a socket, even if it is hung."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ANSWER_SECONDS)
        try:
            probe.connect(str(path))
        except OSError:
            return None
        peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid: int = _UCRED.unpack(peer)[0]
    return pid or None


def kill_listener(path: Path) -> None:
    """Kill the process that listens at a socket, if any, and wait for its end."""
    pid = listener(path)
    if pid is None:
        return
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGKILL)
            select.select([process], [], [], ANSWER_SECONDS)
        finally:
            os.close(process)


def identity(pid: int) -> str:
    """A text that no other process has, also in other containers and on other machines.

    Empty if there is no such process or ``/proc`` cannot be read.
    """
    try:
        start_time = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
        return f"{pid} {start_time} {_pid_namespace()}"
    except OSError:
        return ""


def has_ended(process: str) -> bool:
    """Whether the process with this identity has certainly ended."""
    pid, _, namespace = process.split(" ", 2) if process.count(" ") > 1 else ("", "", "")
    try:
        if not pid or namespace != _pid_namespace():
            return False  # the number is of another container or machine
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):  # not this user's process, or no identity
        pass
    return False


def _pid_namespace() -> str:
    """The PID namespace and boot in which process numbers are unique."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{os.readlink('/proc/self/ns/pid')} {boot}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; the kernel releases it when the process ends."""
    descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


#: Most bytes that are read of the log of a process that could not start.
LOG_BYTES_MAX = 64 << 10
#: Beginning of a log line: the time.
_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT")

#: Prefixes of environment variables with credentials, which a shared node must not get.
SECRETS = ("AWS_", "AZURE_", "GOOGLE_")


def start(
    arguments: list[str], log: Path, options: bytes = b"", *, with_secrets: bool = False
) -> None:
    """Start a process that outlives this one, and wait until it is ready.

    ``options`` are written to its standard input: they may contain secrets, and other users can
    read a process's arguments.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if with_secrets or not name.startswith(SECRETS)
    }
    _reap()
    with os.fdopen(open_private(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as errors:
        child = subprocess.Popen(
            [binary(), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,  # Ctrl-C must reach the job only
        )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        try:
            child.stdin.write(options)
            child.stdin.close()
        except BrokenPipeError:
            pass  # it has ended; its error is read below
        if _line_within(child.stdout.fileno(), START_SECONDS):
            _children.add(child.pid)
            child.returncode = 0  # prevents a ResourceWarning: it is not waited for
            return
    child.kill()
    child.wait()
    raise ForebayError(_reason(log) or f"it did not start and gave no reason; see `{log}`")


def _reason(log: Path) -> str:
    """The reason why a process could not start: its last line that is not a log line."""
    lines = read_private(log, LOG_BYTES_MAX).decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if not _LOG_LINE.match(line)]
    return errors[-1].removeprefix("error: ") if errors else ""


def _reap() -> None:
    for pid in list(_children):
        ended = True
        with suppress(ChildProcessError):  # a child of the process that we were forked from
            ended = os.waitpid(pid, os.WNOHANG) != (0, 0)
        if ended:
            _children.discard(pid)


def _line_within(descriptor: int, seconds: float) -> bool:
    """Whether a whole line arrives within ``seconds``."""
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
