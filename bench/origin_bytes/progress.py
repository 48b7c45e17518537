"""Progress of all jobs, in memory that the processes share."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path


class Progress:
    """Number of batches that each job has yielded."""

    def __init__(self, path: Path, jobs: int) -> None:
        self.path, self._jobs = path, jobs
        path.touch()
        with path.open("r+b") as file:
            file.truncate(8 * jobs)
            self._memory = mmap.mmap(file.fileno(), 8 * jobs)

    def all(self) -> tuple[int, ...]:
        return struct.unpack(f"{self._jobs}q", self._memory[:])

    def set(self, job: int, batches: int) -> None:
        struct.pack_into("q", self._memory, 8 * job, batches)
