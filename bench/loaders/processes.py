"""The driver's side of a loader's processes: starts jobs, runs epochs concurrently, ends them."""

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

#: Timeout of an answer.
ANSWER_SECONDS = 120.0
#: Time for a process to end before it is killed.
END_SECONDS = 10.0
#: Timeout of importing a loader.
IMPORT_SECONDS = 180.0


@dataclass(frozen=True)
class Epoch:
    """Measurements of one epoch of all jobs."""

    samples: int
    #: From the start of the first job to the end of the last.
    seconds: float
    #: Time until every job had a batch.
    first: float
    cpu: float
    origin_bytes: int

    @property
    def rate(self) -> float:
        return self.samples / self.seconds


class Loader:
    """A loader's parent process, from which jobs are forked."""

    def __init__(self, peer: Peer, python: Path, workdir: Path) -> None:
        self.peer = peer
        self._socket = workdir / f"{peer.file}.sock"
        self._log = workdir / f"{peer.file}.log"
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
            raise Unavailable(self.last_line())

    def last_line(self) -> str:
        """The last line of its standard error."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    def fork(self) -> Connection:
        return Connection(self._socket)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class Connection:
    """Connection to one job."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_SECONDS)
        self._socket.connect(os.fspath(path))
        self._lines = self._socket.makefile("rw")
        self.pid: int = self.answer()["pid"]

    def send(self, command: str, **arguments: Any) -> None:
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
        """Let the job end by itself, then kill what is left of its process group."""
        with suppress(OSError, Unavailable):
            ending = os.pidfd_open(self.pid)
            try:
                self._socket.settimeout(END_SECONDS)
                self.send("close")
                self.answer()
                self._socket.shutdown(socket.SHUT_RDWR)
                select.select([ending], [], [], END_SECONDS)
            finally:
                os.close(ending)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(OSError):  # flushes a command that can no longer be sent
            self._lines.close()
        self._socket.close()


class JobGroup:
    """Concurrent jobs of one loader, with their cache."""

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
                    self._pages.add_process(connection.pid)
                cache = task.cache if loader.peer.shares else task.cache / str(job)
                cache.mkdir(mode=0o700, exist_ok=True)
                connection.send("start", task=encode(replace(task, cache=cache, job=job)))
                connection.answer()
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> JobGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def verify(self) -> None:
        """Run an epoch that fills caches and checks every byte."""
        self._all("verify")
        self.origin.sent_when_idle()

    def epoch(self) -> Epoch:
        """Run an epoch of all jobs."""
        self.origin.reset()
        answers = self._all("epoch", time_limit=self.peer.time_limit)
        return Epoch(
            samples=sum(one["samples"] for one in answers),
            seconds=max(one["ended"] for one in answers) - min(one["began"] for one in answers),
            first=max(one["first"] for one in answers),
            cpu=sum(one["cpu"] for one in answers),
            origin_bytes=self.origin.sent_when_idle(),
        )

    def cap(self, pages: int) -> None:
        """Limit memory to the peak of one epoch plus ``pages`` bytes of page cache."""
        assert self._pages is not None
        with self._pages.watched():
            self.epoch()
        self._pages.cap(pages)

    def end(self) -> None:
        for job in reversed(self._jobs):  # the first one owns what all share
            job.end()
        self._jobs.clear()
        if self._pages is not None:
            self._pages.remove()
        _sweep(self._cache)
        shutil.rmtree(self._cache, ignore_errors=True)

    def _all(self, command: str, **arguments: Any) -> Sequence[dict[str, Any]]:
        for job in self._jobs:
            job.send(command, **arguments)
        return [job.answer() for job in self._jobs]


def _sweep(cache: Path) -> None:
    """Remove MosaicML Streaming's shared memory of this cache, which outlives a killed process."""
    for locals_file in Path("/dev/shm").glob("*_locals"):
        with suppress(OSError):
            if os.fsencode(cache) in locals_file.read_bytes():
                for left in locals_file.parent.glob(locals_file.name.replace("_locals", "_*")):
                    left.unlink()


def prepare(loader: Loader, items: Items, origin: Origin) -> None:
    """Have a loader write its own format."""
    job = loader.fork()
    try:
        fields = {**asdict(items), "directory": str(items.directory)}
        job.send("prepare", items=fields, origin=asdict(origin))
        job.answer()
    finally:
        job.end()
