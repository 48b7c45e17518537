"""CPU time and page cache of a job's processes.

The page cache favours loaders that keep plain files: half a gigabyte is never read from disk again.
So the jobs of one side run in a memory cgroup, whose limit is what their processes need plus pages
for a fraction of the dataset.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_ROOT = Path("/sys/fs/cgroup/memory")
_WATCH_SECONDS = 0.01


def cpu_seconds() -> float:
    """CPU time of this process and all its descendants, alive or not."""
    parents, seconds = dict[int, int](), dict[int, float]()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            # After the name, which may contain any character: state, parent, ..., and four times.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            seconds[int(entry.name)] = sum(map(int, fields[11:15])) / _TICKS
    own = os.getpid()
    return sum(spent for pid, spent in seconds.items() if _descends(pid, own, parents))


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid not in (0, ancestor):
        pid = parents.get(pid, 0)
    return pid == ancestor


class Pages:
    """A memory cgroup for the processes of one side."""

    def __init__(self, name: str) -> None:
        self._directory = _ROOT / f"forebay-bench-{os.getpid()}-{name}"
        self._directory.mkdir()
        self._held_max = 0

    def add_process(self, pid: int) -> None:
        """Count the memory of this process and its children here from now on."""
        (self._directory / "cgroup.procs").write_text(str(pid))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record the peak memory of the processes during the context."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_WATCH_SECONDS):
                self._held_max = max(self._held_max, self._held())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def cap(self, pages: int) -> None:
        """Set the limit to ``pages`` bytes above the recorded peak."""
        (self._directory / "memory.limit_in_bytes").write_text(str(self._held_max + pages))

    def _held(self) -> int:
        """Memory that the kernel cannot reclaim."""
        lines = (self._directory / "memory.stat").read_text().splitlines()
        counted = dict(line.split() for line in lines)
        kernel = int((self._directory / "memory.kmem.usage_in_bytes").read_text())
        return int(counted["total_rss"]) + int(counted["total_shmem"]) + kernel

    def remove(self) -> None:
        """Remove the cgroup after its processes have ended."""
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            with suppress(OSError):
                self._directory.rmdir()
                return
            time.sleep(0.05)


def cap_problem() -> str | None:
    """The reason why the page cache cannot be capped here, or ``None``."""
    if not (_ROOT / "memory.limit_in_bytes").exists():
        return "there is no memory controller of cgroup version 1 at /sys/fs/cgroup/memory"
    if not os.access(_ROOT, os.W_OK):
        return "/sys/fs/cgroup/memory is not writable; run as root"
    return None
