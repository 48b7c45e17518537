"""The node of this machine: found, or started and left running for other jobs."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from forebay._native import ForebayError
from forebay._runtime.private_files import ensure_private_directory
from forebay._runtime.processes import (
    ANSWER_SECONDS,
    START_SECONDS,
    age_seconds,
    answers,
    kill_process,
    locked,
    spawn,
)
from forebay._runtime.warnings import printable, warn

#: A node that was started for a job exits after this time without a connection.
IDLE_EXIT = "10min"

#: Longest time that a read waits for a starting node: that in which a hung node is detected.
WAIT_SECONDS = 5.0
#: Delay before a node is started again after the first failure. Each further one doubles it.
RETRY_SECONDS_MIN = 1.0
#: Longest delay before a node is started again.
RETRY_SECONDS_MAX = 60.0
#: Most bytes that are read of the record of a starting node: an identity, which is shorter.
RECORD_BYTES_MAX = 256


def default_socket() -> Path:
    """The socket of this user's node, by the rule of ``forebay serve``."""
    from_environment = os.environ.get("FOREBAY_SOCKET")
    if from_environment:
        return Path(from_environment)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "forebay" / "node.sock"
    return Path(f"/tmp/forebay-{os.geteuid()}/node.sock")


def endpoint(cache: str | os.PathLike[str] | None) -> Path | str | None:
    """The endpoint of a node: the path of a socket, or a URL."""
    if cache is None:
        return None
    text = os.fspath(cache)
    if "://" not in text and "," not in text:
        return Path(text).absolute()
    # The workers and the agent may have another working directory.
    seeds = (seed.strip() for seed in text.split(","))
    return ",".join(
        str(Path(seed).absolute()) if seed and "://" not in seed else seed for seed in seeds
    )


@dataclass
class Backoff:
    """When this process may next try to start a node, after attempts that failed."""

    next_at: float = 0.0
    delay: float = RETRY_SECONDS_MIN

    def on_failure(self) -> None:
        """Delay the next attempt."""
        self.next_at = time.monotonic() + self.delay
        self.delay = min(2 * self.delay, RETRY_SECONDS_MAX)


#: Backoffs of this process, by the node's socket. Entries end when the node answers.
_backoffs: dict[Path, Backoff] = {}


def ensure_node(path: Path, namespace_key: Path | None = None) -> None:
    """Start a node at ``path`` unless one answers there; warn if it cannot be started.

    Takes ``WAIT_SECONDS`` at most. A node that needs longer goes on starting, and readers use it as
    soon as it answers.
    """
    backoff = _backoffs.get(path, Backoff())
    if time.monotonic() < backoff.next_at:
        return
    deadline = time.monotonic() + WAIT_SECONDS
    problem = ""
    if not answers(path):
        try:
            ensure_private_directory(path.parent)
            # A lock file of its own: the node holds its own lock until it exits.
            lock = path.with_name(path.name + ".start")
            with locked(lock, deadline - time.monotonic()) as record:
                left = max(0.0, min(ANSWER_SECONDS, deadline - time.monotonic()))
                if not answers(path, left) and not _start(path, namespace_key, record, deadline):
                    problem = "it has not started yet"
        except TimeoutError:
            problem = "another job has not started it yet"
        except (OSError, ForebayError) as error:
            problem = str(error)
    if not problem:
        _backoffs.pop(path, None)
        return
    if path not in _backoffs:
        warn_without_node(path, problem)
    backoff.on_failure()
    _backoffs[path] = backoff


def warn_without_node(node: Path | str, problem: str) -> None:
    """Warn that the job goes on without a node."""
    warn(f"no forebay node at `{node}` ({problem}): reading the origin directly")


def _start(path: Path, namespace_key: Path | None, record: int, deadline: float) -> bool:
    """Start the node unless it is starting already. Returns whether it is ready.

    ``record`` is the locked file with the identity of a node that is starting. Processes that find
    it start no second node. They kill a node that has been starting for ``START_SECONDS``.
    """
    starting = os.pread(record, RECORD_BYTES_MAX, 0).decode(errors="replace")
    age = age_seconds(starting)
    if age is not None:
        if age < START_SECONDS:
            return False
        kill_process(starting)
    os.ftruncate(record, 0)
    arguments = ["serve", "--socket", str(path), "--idle-exit", IDLE_EXIT]
    if namespace_key is not None:
        arguments += ["--namespace-key", str(namespace_key)]
    child = spawn(arguments, path.with_name(path.name + ".log"))
    os.pwrite(record, child.identity.encode(), 0)
    is_ready = child.is_ready_within(max(0.0, deadline - time.monotonic()))
    if is_ready:
        os.ftruncate(record, 0)
        _announce(child.announcement)
    return is_ready


def _announce(line: bytes) -> None:
    """Say what a new node has reserved, and how to change it. A node with content is not new."""
    try:
        node = json.loads(line)
        size, directory = int(node["capacity_bytes"]), str(node["directory"])
        is_new = node["resident_bytes"] == 0
    except (ValueError, KeyError, TypeError):
        return  # a node of another version
    if is_new:
        shown = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
        text = (
            f"forebay: started a node that reserves {shown} in `{directory}`; set FOREBAY_CAPACITY"
            " for another size, or cache=None for no cache"
        )
        print(printable(text), file=sys.stderr)
