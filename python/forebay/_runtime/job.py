"""Jobs: the name, the private directory and the agent of a job.

The directory is created on first use. It is removed when the main process ends: by that process; by
the agent, if the process is killed; by the next job that creates a directory, if the agent is
killed, too. Each process of the job starts the agent if it is not there or is hung. The agent exits
with the main process.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import signal
import stat
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from forebay._native import Digest, Reader
from forebay._runtime.node import ensure_node, warn_without_node
from forebay._runtime.private_files import is_own_directory, read_private, write_private
from forebay._runtime.processes import (
    answers,
    has_ended,
    identity,
    kill_listener,
    listener,
    locked,
    start,
)
from forebay._runtime.ranks import launched_name, ranks_if_known

#: Prefix of the names of jobs' directories.
PREFIX = "forebay-job-"
#: File in a job's directory with the identity of its main process.
OWNER = "owner"
#: Longest identity that is read. A PID, a start time, a PID namespace and a boot id are shorter.
OWNER_BYTES_MAX = 256
#: Entries of the temporary directory that one job examines, so that another user's files there cost
#: it little time.
SWEEP_ENTRIES_MAX = 100_000

#: Longest path of a Unix socket on Linux, in bytes.
SOCKET_PATH_MAX = 107

#: Timeout of the greeting before an agent is replaced: another process may have started a new one.
AGENT_SECONDS = 1.0


@dataclass(frozen=True)
class JobName:
    """The name of a job on nodes: the user's, or a unique one."""

    #: The user's name for the job.
    given: str | None
    #: A unique name.
    unique: str = field(default_factory=lambda: f"job-{os.getpid()}-{secrets.token_hex(4)}")
    #: The process that created this name.
    pid: int = field(default_factory=os.getpid)
    #: Number of the copy of the dataset that has this name; 0 is the original.
    copy: int = 0
    #: A name that an unnamed job has in all its ranks, if a launcher started them.
    launched: str | None = field(default_factory=lambda: launched_name(next(_made)))

    def of(self, rank: int, world: int) -> str:
        """The name of this rank; ranks, and forks of unnamed jobs, must not fence each other.

        Ranks of one job have a common name, followed by which they are: the node merges them.
        """
        name = self.given or (self.launched if world > 1 else None)
        if name is None:
            return self.unique if os.getpid() == self.pid else f"{self.unique}.{os.getpid()}"
        name = f"{name}.copy{self.copy}" if self.copy else name
        return name if world == 1 else f"{name}.{rank}of{world}"

    def of_copy(self) -> JobName:
        """The name for a copy of the dataset.

        Copies in the process of the original get a suffix, or they would fence it. The first copy
        in another process keeps the name.
        """
        copy = _copies[self.unique] + (self.pid == os.getpid())
        _copies[self.unique] += 1
        if self.given is None:
            return JobName(None, copy=copy, launched=self.launched)
        return replace(self, copy=copy)


#: Number of dataset copies made in this process, by the job's unique name.
_copies: Counter[str] = Counter()
#: Numbers of the names made in this process: ranks make theirs in the same order.
_made: Iterator[int] = itertools.count()


@dataclass(frozen=True, eq=False)
class Job:
    """The parameters of a job's agent, and where to reach it. Pickles to workers."""

    digest: Path
    name: JobName
    #: Endpoint of the node: a socket, or a URL.
    node: Path | str | None
    #: Whether to start a node that is not running.
    start_node: bool
    origin: str | None
    namespace_key: Path | None
    #: Which reads are verified, as text.
    verify: str
    #: Storage options as JSON; may contain secrets.
    options: bytes = field(repr=False)
    directory: Path
    #: The main process; its identity distinguishes it from others with the same number.
    pid: int
    identity: str

    @property
    def socket(self) -> Path:
        return self.directory / "agent.sock"

    def reader(self, digest: Digest, name: str, before: Reader | None = None) -> Reader:
        """A reader, which connects on first use; it takes the node health of ``before``."""
        return Reader(digest, self.node, self.socket, name, before, self.verify, self.namespace_key)

    def ensure_directory(self) -> Path:
        """The directory, which is created if needed."""
        try:
            self.directory.mkdir(mode=0o700)
        except FileExistsError:
            status = self.directory.lstat()
            if not is_own_directory(status) or stat.S_IMODE(status.st_mode) != 0o700:
                raise PermissionError(
                    f"`{self.directory}` belongs to another user or has wrong modes; remove it"
                ) from None
        else:
            write_private(self.directory / OWNER, self.identity.encode())
            _sweep(self.directory.parent)
        return self.directory

    def ensure_agent(self) -> None:
        """Start the agent, and the node, unless the agent answers."""
        with locked(self.ensure_directory() / "start.lock"):
            if answers(self.socket, AGENT_SECONDS):
                return
            kill_listener(self.socket)
            if self.node is not None:
                self._ensure_node(self.node)
            arguments = ["agent", str(self.digest), "--socket", str(self.socket)]
            arguments += [f"--job={self.name.of(*ranks_if_known())}", "--job-pid", str(self.pid)]
            arguments += ["--remove-directory", "--options-from-stdin"]
            for flag, value in (
                ("--node", self.node),
                ("--origin", self.origin),
                ("--namespace-key", self.namespace_key),
            ):
                if value is not None:
                    arguments += [flag, str(value)]
            start(arguments, self.directory / "agent.log", self.options, with_secrets=True)

    def restart_node(self) -> None:
        """Start a node that has failed, whichever job started it first."""
        if self.start_node and isinstance(self.node, Path):
            ensure_node(self.node, self.namespace_key)

    def _ensure_node(self, node: Path | str) -> None:
        """Start the node, or warn that it does not answer; once per job."""
        seen = self.directory / "node.seen"
        if seen.exists():
            return
        seen.touch()
        if self.start_node and isinstance(node, Path):
            ensure_node(node, self.namespace_key)
        elif not answers(node):
            warn_without_node(node, "it does not answer")


def new_job(
    digest: Path,
    *,
    name: str | None,
    node: Path | str | None,
    start_node: bool,
    origin: str | None,
    namespace_key: Path | None,
    verify: str,
    options: Mapping[str, object],
) -> Job:
    """A new job with this process as its main process."""
    return _owned(
        Job(
            digest=digest.absolute(),
            name=JobName(name),
            node=node,
            start_node=start_node,
            origin=origin,
            namespace_key=namespace_key and namespace_key.absolute(),
            verify=verify,
            options=json.dumps(dict(options)).encode(),
            directory=Path(),
            pid=0,
            identity="",
        )
    )


def present_job(job: Job) -> Job:
    """The job, or a new one like it if it has ended because it was unpickled later."""
    is_over = job.directory in _ended or identity(job.pid) != job.identity
    return _owned(job) if is_over else job


def _owned(job: Job) -> Job:
    """The same job in a new directory, with this process as its main process."""
    directory, pid = _short_path(), os.getpid()
    job = replace(job, directory=directory, pid=pid, identity=identity(pid))
    weakref.finalize(job, _end, directory, pid)
    return job


def _short_path() -> Path:
    """A path for the directory: below ``/tmp`` if the socket's path in ``TMPDIR`` is too long."""
    name, temporary = f"{PREFIX}{secrets.token_hex(6)}", tempfile.gettempdir()
    length_max = SOCKET_PATH_MAX - len(os.fsencode(f"/{name}/agent.sock"))
    return Path(temporary if len(os.fsencode(temporary)) <= length_max else "/tmp") / name


#: Directories of jobs that this process has ended.
_ended: set[Path] = set()


def _sweep(temporary: Path) -> None:
    """Remove directories of this user's jobs that were killed together with their agents.

    Other users write to the same directory, so nothing found there may raise or block.
    """
    with suppress(OSError), os.scandir(temporary) as entries:
        for entry in itertools.islice(entries, SWEEP_ENTRIES_MAX):
            if not entry.name.startswith(PREFIX):
                continue
            with suppress(Exception):  # of other users, or just being created
                if not is_own_directory(entry.stat(follow_symlinks=False)):
                    continue
                if has_ended(read_private(Path(entry) / OWNER, OWNER_BYTES_MAX).decode()):
                    shutil.rmtree(entry, ignore_errors=True)


def _end(directory: Path, pid: int) -> None:
    """Stop the agent and remove the directory, unless this is a fork of the main process."""
    if os.getpid() != pid:
        return
    _ended.add(directory)
    with suppress(OSError):
        agent = listener(directory / "agent.sock")
        if agent is not None:
            os.kill(agent, signal.SIGTERM)
    shutil.rmtree(directory, ignore_errors=True)
