"""Shared counters: counts of all processes of a job.

Each thread writes a record of its own, so that no process waits for another and a dead worker's
counts are kept. A reader adds the records up.

The records are in a memfd, which has no name in any directory, so that nothing is left behind
however the job ends. Forked processes inherit it. Spawned ones open it in ``/proc`` of the process
that pickled it, which must still be running.
"""

from __future__ import annotations

import os
import secrets
import struct
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress


class SharedCounters:
    """Named counters. Pickles to workers."""

    def __init__(self, names: Sequence[str]) -> None:
        self._init(tuple(names), f"forebay-counters-{secrets.token_hex(8)}")
        with suppress(OSError):  # without shared memory nothing is counted
            self._use(os.memfd_create(self._name))

    def _init(self, names: tuple[str, ...], name: str) -> None:
        self.names, self._name = names, name
        self._record = struct.Struct(f"<{len(names)}Q")
        self._local = threading.local()
        self._descriptor: int | None = None

    def _use(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def __getstate__(self) -> tuple[tuple[str, ...], str, str]:
        return self.names, self._name, f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def __setstate__(self, state: tuple[tuple[str, ...], str, str]) -> None:
        names, name, path = state
        self._init(names, name)
        with suppress(OSError):
            if os.readlink(path).startswith(f"/memfd:{name} "):
                self._use(os.open(path, os.O_RDWR | os.O_CLOEXEC))
                return
        # The process that pickled it has ended: count from 0.
        self.__init__(names)  # type: ignore[misc]

    def add(self, **counts: int) -> None:
        """Add to some of the counters."""
        if not any(counts.values()) or self._descriptor is None:
            return
        own = self._local.__dict__
        if own.get("pid") != os.getpid():
            # A forked process begins at 0, in a record of its own.
            own.update(pid=os.getpid(), offset=None, counts=dict.fromkeys(self.names, 0))
        for name, count in counts.items():
            own["counts"][name] += count
        with suppress(OSError):
            if own["offset"] is None:
                own["offset"] = self._append_record()
            os.pwrite(self._descriptor, self._record.pack(*own["counts"].values()), own["offset"])

    def _append_record(self) -> int:
        """Append an empty record and return its offset; concurrent appends do not overlap."""
        end = os.open(f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(end, bytes(self._record.size))
            return os.lseek(end, 0, os.SEEK_CUR) - self._record.size
        finally:
            os.close(end)

    def totals(self) -> dict[str, int]:
        """The sums of all processes and threads."""
        totals = [0] * len(self.names)
        if self._descriptor is not None:
            size = os.fstat(self._descriptor).st_size
            for record in self._record.iter_unpack(os.pread(self._descriptor, size, 0)):
                totals = [a + b for a, b in zip(totals, record, strict=True)]
        return dict(zip(self.names, totals, strict=True))
