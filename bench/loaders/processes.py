"""The driver's end of a loader's processes: jobs that are opened, run epochs at once, and end."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from loaders.environments import Unavailable
from loaders.items import Items
from loaders.job import encode
from loaders.limits import Pages
from loaders.origin import Origin
from loaders.peers import Peer, Task

#: Whoever has not answered by then hangs.
ANSWER_SECONDS = 120.0
#: So long may the end of a process take before it is killed.
END_SECONDS = 10.0
IMPORT_SECONDS = 180.0


@dataclass(frozen=True)
class Epoch:
    """What one epoch, of all jobs at once, came to."""

    samples: int
    #: From the first job's first moment to the last one's last.
    seconds: float
    #: Until every job had a batch.
    first: float
    cpu: float
    origin_bytes: int

    @property
    def rate(self) -> float:
        return self.samples / self.seconds


class Loader:
    """A loader's parent process, from which jobs are forked."""

    def __init__(self, peer: Peer, python: Path, place: Path) -> None:
        self.peer, self.place = peer, place
        self._socket = place / f"{peer.file}.sock"
        self._log = place / f"{peer.file}.log"
        packages = str(Path(__file__).parent.parent)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", "loaders.job", peer.file, self._socket],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": packages, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], IMPORT_SECONDS)[0]
        if not ready or not self._process.stdout.readline():
            self.end()
            raise Unavailable(self.last_words())

    def last_words(self) -> str:
        """The last thing that it said on standard error."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def fork(self) -> Connection:
        return Connection(self._socket)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Connection:
    """One job."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_SECONDS)
        self._socket.connect(os.fspath(path))
        self._lines = self._socket.makefile("rw")
        self.pid: int = self.answer()["pid"]

    def tell(self, command: str, **arguments: Any) -> None:
        self._lines.write(json.dumps({"command": command, **arguments}) + "\n")
        self._lines.flush()

    def answer(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except TimeoutError:
            raise Unavailable(f"no answer within {ANSWER_SECONDS:.0f} s") from None
        if not line:
            raise Unavailable("its process has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Unavailable(answer["error"])
        return answer

    def end(self) -> None:
        """Let it end by itself, then see to it that nothing of it is left."""
        with suppress(OSError, Unavailable):
            ending = os.pidfd_open(self.pid)
            try:
                self._socket.settimeout(END_SECONDS)
                self.tell("close")
                self.answer()
                self._socket.shutdown(socket.SHUT_RDWR)
                select.select([ending], [], [], END_SECONDS)
            finally:
                os.close(ending)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(OSError):  # a command that was not sent any more
            self._lines.close()
        self._socket.close()


class Team:
    """Jobs of one loader that run at once, with whatever they cache."""

    def __init__(self, loader: Loader, task: Task, jobs: int, pages: str | None) -> None:
        self.peer, self.origin, self.workers = loader.peer, task.origin, task.workers
        self._cache = task.cache
        self._pages = None if pages is None else Pages(pages)
        self._jobs: list[Connection] = []
        task.cache.mkdir(mode=0o700)
        try:
            for job in range(jobs):
                connection = loader.fork()
                self._jobs.append(connection)
                if self._pages is not None:
                    self._pages.take_in(connection.pid)
                cache = task.cache if loader.peer.shares else task.cache / str(job)
                cache.mkdir(mode=0o700, exist_ok=True)
                connection.tell("start", task=encode(replace(task, cache=cache, job=job)))
                connection.answer()
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def verify(self) -> None:
        """An epoch that fills caches, and in which every byte is checked."""
        self._all("verify")
        self.origin.sent_in_the_end()

    def epoch(self) -> Epoch:
        """An epoch of all jobs at once."""
        self.origin.reset()
        told = self._all("epoch", patience=self.peer.patience)
        return Epoch(
            samples=sum(one["samples"] for one in told),
            seconds=max(one["ended"] for one in told) - min(one["began"] for one in told),
            first=max(one["first"] for one in told),
            cpu=sum(one["cpu"] for one in told),
            origin_bytes=self.origin.sent_in_the_end(),
        )

    def cap(self, pages: int) -> None:
        """Leave so many bytes for the page cache, and as many for processes as an epoch takes."""
        assert self._pages is not None
        with self._pages.watched():
            self.epoch()
        self._pages.cap(pages)

    def end(self) -> None:
        for job in reversed(self._jobs):  # the first one has what all share
            job.end()
        self._jobs.clear()
        if self._pages is not None:
            self._pages.remove()
        _sweep(self._cache)
        shutil.rmtree(self._cache, ignore_errors=True)

    def _all(self, command: str, **arguments: Any) -> Sequence[dict[str, Any]]:
        for job in self._jobs:
            job.tell(command, **arguments)
        return [job.answer() for job in self._jobs]


def _sweep(cache: Path) -> None:
    """MosaicML Streaming's shared memory outlives a process that was killed: remove what names
    this cache.
    """
    for named in Path("/dev/shm").glob("*_locals"):
        with suppress(OSError):
            if os.fsencode(cache) in named.read_bytes():
                for left in named.parent.glob(named.name.replace("_locals", "_*")):
                    left.unlink()


def prepare(loader: Loader, items: Items, origin: Origin) -> None:
    """Have a loader write its own format."""
    job = loader.fork()
    try:
        told = {**asdict(items), "directory": str(items.directory)}
        job.tell("prepare", items=told, origin=asdict(origin))
        job.answer()
    finally:
        job.end()
