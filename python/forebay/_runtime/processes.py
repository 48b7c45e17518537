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

#: Interval between two attempts to take a lock.
LOCK_POLL_SECONDS = 0.02

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

    Empty if the process has ended or ``/proc`` cannot be read.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        if status[0] in "ZX":  # it has ended, and its parent has not noticed yet
            return ""
        return f"{pid} {status[19]} {_pid_namespace()}"
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


def age_seconds(process: str) -> float | None:
    """Seconds since the process with this identity has started; ``None`` if it has ended."""
    pid, _, rest = process.partition(" ")
    if not pid.isdecimal() or identity(int(pid)) != process:
        return None
    ticks = int(rest.split(" ", 1)[0])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def kill_process(process: str) -> None:
    """Kill the process with this identity, if it has not ended, and wait for its end."""
    with suppress(OSError, ValueError, OverflowError):
        descriptor = os.pidfd_open(int(process.split(" ", 1)[0]))
        try:
            # Checked after the open: the descriptor keeps referring to this process.
            if age_seconds(process) is not None:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                select.select([descriptor], [], [], ANSWER_SECONDS)
        finally:
            os.close(descriptor)


def _pid_namespace() -> str:
    """The PID namespace and boot in which process numbers are unique."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{os.readlink('/proc/self/ns/pid')} {boot}"


@contextmanager
def locked(path: Path, seconds: float | None = None) -> Iterator[int]:
    """Hold a lock file, as a descriptor; the kernel releases it when the process ends.

    Raises ``TimeoutError`` if other processes hold it for ``seconds``; ``None`` waits without end.
    """
    descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        if seconds is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        else:
            _lock_within(descriptor, seconds)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock_within(descriptor: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError("another process holds the lock") from None
            time.sleep(LOCK_POLL_SECONDS)


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
    child = spawn(arguments, log, options, with_secrets=with_secrets)
    if not child.is_ready_within(START_SECONDS):
        child.kill()
        raise _not_started(log)


def spawn(
    arguments: list[str], log: Path, options: bytes = b"", *, with_secrets: bool = False
) -> StartingProcess:
    """Start a process that outlives this one, without waiting; the parameters as in ``start``."""
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
    try:
        child.stdin.write(options)
        child.stdin.close()
    except BrokenPipeError:
        pass  # it has ended; its error is in the log
    return StartingProcess(child, log)


class StartingProcess:
    """A process that was started and may not be ready yet."""

    def __init__(self, child: subprocess.Popen[bytes], log: Path) -> None:
        self._child, self._log = child, log
        self.identity = identity(child.pid)
        #: The line that it printed when it was ready.
        self.announcement = b""

    def is_ready_within(self, seconds: float) -> bool:
        """Whether the process is ready within ``seconds``; otherwise it goes on starting.

        Raises ``ForebayError`` with its reason if it has ended instead. Called once.
        """
        assert self._child.stdout is not None
        with self._child.stdout as stdout:
            line = _line_within(stdout.fileno(), seconds)
        if line == b"":
            self.kill()
            raise _not_started(self._log)
        _children.add(self._child.pid)
        self.announcement = line or b""
        self._child.returncode = 0  # prevents a ResourceWarning: it is not waited for
        return line is not None

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        _children.discard(self._child.pid)
        self._child.returncode = None
        self._child.kill()
        self._child.wait()


def _not_started(log: Path) -> ForebayError:
    """Why a process could not start: the last line of its log that begins without a time."""
    lines = read_private(log, LOG_BYTES_MAX).decode(errors="replace").strip().splitlines()
    errors = [line for line in lines if not _LOG_LINE.match(line)]
    if errors:
        return ForebayError(errors[-1].removeprefix("error: "))
    return ForebayError(f"it did not start and gave no reason; see `{log}`")


def _reap() -> None:
    for pid in list(_children):
        ended = True
        with suppress(ChildProcessError):  # a child of the process that we were forked from
            ended = os.waitpid(pid, os.WNOHANG) != (0, 0)
        if ended:
            _children.discard(pid)


def _line_within(descriptor: int, seconds: float) -> bytes | None:
    """A whole line; ``None`` if it does not arrive within ``seconds``, empty if it never will."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        more = os.read(descriptor, 4096)
        if not more:
            return b""
        line += more
    return line
