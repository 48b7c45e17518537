"""A job: its private directory, and the agent that lives there.

The directory is made when it is first needed, and removed when the main process ends: by itself; if
it is killed, by the agent; and if that is gone, too, by the next job that makes one. Any process of
the job may find the agent missing, at first or after a crash, or hung, and starts another; the
agent itself leaves with the main process.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import stat
import tempfile
import weakref
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from forebay._native import Digest, Reader
from forebay._node import ensure_node, warn_without
from forebay._processes import (
    answers,
    has_gone,
    identity,
    kill_listener,
    listener,
    locked,
    start,
)
from forebay._ranks import ranks

#: What the directories of jobs are called.
PREFIX = "forebay-job-"
#: The file in a job's directory that says which process it belongs to.
OWNER = "owner"

#: What Linux lets the path of a socket have, in bytes.
SOCKET_PATH_MAX = 107

#: What the agent understands; it is the judge of the values.
OPTIONS = ("endpoint", "access_key", "secret_key", "anonymous", "deadline_seconds")

#: An agent that was found silent has so long to contradict: somebody else may have started another.
AGENT_SECONDS = 1.0


@dataclass(frozen=True)
class JobName:
    """What nodes call a job: what its user does; else a name that no other process has."""

    given: str | None
    own: str = field(default_factory=lambda: f"job-{os.getpid()}-{secrets.token_hex(4)}")
    #: The process that made it.
    pid: int = field(default_factory=os.getpid)
    #: Which copy of the job's dataset it is for, in its process.
    copy: int = 0

    def of(self, rank: int, world: int) -> str:
        """This process's: ranks, and forks that nobody named, must not replace each other."""
        if self.given is None:
            return self.own if os.getpid() == self.pid else f"{self.own}.{os.getpid()}"
        name = f"{self.given}.copy{self.copy}" if self.copy else self.given
        return name if world == 1 else f"{name}.{rank}"

    def of_a_copy(self) -> JobName:
        """What a copy of the dataset is called: beside another in the same process not like that
        one, or they would replace each other. In a process of its own it is the job.
        """
        if self.given is None:
            return JobName(None)
        copy = _copies[self.own] + (self.pid == os.getpid())
        _copies[self.own] += 1
        return replace(self, copy=copy)


#: Copies that there have been in this process of the datasets of jobs, by their own names.
_copies: Counter[str] = Counter()


@dataclass(frozen=True, eq=False)
class Job:
    """What a job's processes must know to reach its agent, or to start it. Pickles to workers."""

    digest: Path
    called: JobName
    #: Where the node listens: a socket, or a URL.
    node: Path | str | None
    #: Whether a node that is not there is to be started.
    start_node: bool
    origin: str | None
    namespace_key: Path | None
    #: JSON; may hold secrets.
    options: bytes = field(repr=False)
    directory: Path
    #: The main process, and what tells it from others that had its number.
    pid: int
    identity: str

    @property
    def socket(self) -> Path:
        return self.directory / "agent.sock"

    def reader(self, digest: Digest, name: str, before: Reader | None = None) -> Reader:
        """A way to the bytes; nothing is connected or started before it is needed. What the one
        ``before`` knew of hung nodes is not found out again.
        """
        return Reader(digest, self.node, self.socket, name, before)

    def made(self) -> Path:
        """The directory, which is there from now on."""
        try:
            self.directory.mkdir(mode=0o700)
        except FileExistsError:
            status = self.directory.lstat()
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
                raise PermissionError(f"`{self.directory}` is somebody else's") from None
        else:
            (self.directory / OWNER).write_text(self.identity)
            _sweep(self.directory.parent)
        return self.directory

    def ensure_agent(self) -> None:
        """Start the agent (and the node) if it is not there, or does not answer any more."""
        with locked(self.made() / "start.lock"):
            if answers(self.socket, AGENT_SECONDS):
                return
            kill_listener(self.socket)
            if self.node is not None:
                self._ensure_node(self.node)
            arguments = ["agent", str(self.digest), "--socket", str(self.socket)]
            arguments += [f"--job={self.called.of(*ranks())}", "--job-pid", str(self.pid)]
            arguments += ["--remove-directory", "--options-from-stdin"]
            for flag, value in (
                ("--node", self.node),
                ("--origin", self.origin),
                ("--namespace-key", self.namespace_key),
            ):
                if value is not None:
                    arguments += [flag, str(value)]
            start(arguments, self.directory / "agent.log", self.options, with_secrets=True)

    def revive_node(self) -> None:
        """The node has failed: start it again, whoever of those that share it did before."""
        if self.start_node and isinstance(self.node, Path):
            ensure_node(self.node, self.namespace_key)

    def _ensure_node(self, node: Path | str) -> None:
        """Once per job, before anybody misses it."""
        seen = self.directory / "node.seen"
        if seen.exists():
            return
        seen.touch()
        if self.start_node and isinstance(node, Path):
            ensure_node(node, self.namespace_key)
        elif not answers(node):
            warn_without(node, "nobody answers there")


def check_options(options: Mapping[str, object]) -> None:
    """Refuse what no agent understands."""
    for option in options:
        if option not in OPTIONS:
            there_are = ", ".join(OPTIONS)
            raise ValueError(f"there is no storage option `{option}`; there are {there_are}")


def new_job(
    digest: Path,
    *,
    name: str | None,
    node: Path | str | None,
    start_node: bool,
    origin: str | None,
    namespace_key: Path | None,
    options: Mapping[str, object],
) -> Job:
    """A job of this process."""
    return _owned(
        Job(
            digest=digest.absolute(),
            called=JobName(name),
            node=node,
            start_node=start_node,
            origin=origin,
            namespace_key=namespace_key and namespace_key.absolute(),
            options=json.dumps(dict(options)).encode(),
            directory=Path(),
            pid=0,
            identity="",
        )
    )


def present_job(job: Job) -> Job:
    """The job itself; if it has ended, because it was pickled for later, one like it of our own."""
    has_ended = job.directory in _ended or identity(job.pid) != job.identity
    return _owned(job) if has_ended else job


def _owned(job: Job) -> Job:
    """The same job with this process as its main process."""
    directory, pid = _short_path(), os.getpid()
    job = replace(job, directory=directory, pid=pid, identity=identity(pid))
    weakref.finalize(job, _end, directory, pid)
    return job


def _short_path() -> Path:
    """For a directory with a socket, whose path must be short: if need be not in ``TMPDIR``."""
    name, named = f"{PREFIX}{secrets.token_hex(6)}", tempfile.gettempdir()
    room = SOCKET_PATH_MAX - len(os.fsencode(f"/{name}/agent.sock"))
    return Path(named if len(os.fsencode(named)) <= room else "/tmp") / name


#: Of jobs that this process has ended.
_ended: set[Path] = set()


def _sweep(temporary: Path) -> None:
    """Remove what jobs have left that were killed together with their agents."""
    with suppress(OSError), os.scandir(temporary) as entries:
        for entry in entries:
            if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            with suppress(OSError):  # others', and what has just been made
                if has_gone((Path(entry) / OWNER).read_text()):
                    shutil.rmtree(entry, ignore_errors=True)


def _end(directory: Path, pid: int) -> None:
    """Stop the agent and remove the directory; a fork of the main process must not."""
    if os.getpid() != pid:
        return
    _ended.add(directory)
    with suppress(OSError):
        agent = listener(directory / "agent.sock")
        if agent is not None:
            os.kill(agent, signal.SIGTERM)
    shutil.rmtree(directory, ignore_errors=True)
