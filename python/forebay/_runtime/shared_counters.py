"""Counts of all processes of a job: each thread has a record of its own, so that nobody waits for
anybody or is lost with a worker, and whoever asks adds them up.

Records lie in memory that has no name in any directory, so that nothing is left of it, whatever
ends the job. Forks inherit it; who is spawned, or unpickles it otherwise, opens it where the
process that pickled it has it, as long as that lives.
"""

from __future__ import annotations

import os
import secrets
import struct
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress


class Tally:
    """Some counts, by name. Pickles to workers."""

    def __init__(self, names: Sequence[str]) -> None:
        self._begin(tuple(names), f"forebay-tally-{secrets.token_hex(8)}")
        with suppress(OSError):  # without memory to share, nothing is counted
            self._keep(os.memfd_create(self._name))

    def _begin(self, names: tuple[str, ...], name: str) -> None:
        self.names, self._name = names, name
        self._record = struct.Struct(f"<{len(names)}Q")
        self._local = threading.local()
        self._descriptor: int | None = None

    def _keep(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def __getstate__(self) -> tuple[tuple[str, ...], str, str]:
        return self.names, self._name, f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def __setstate__(self, state: tuple[tuple[str, ...], str, str]) -> None:
        names, name, where = state
        self._begin(names, name)
        with suppress(OSError):
            if os.readlink(where).startswith(f"/memfd:{name} "):
                self._keep(os.open(where, os.O_RDWR | os.O_CLOEXEC))
                return
        # It was pickled for later, and those who were counted then are gone.
        self.__init__(names)  # type: ignore[misc]

    def add(self, **counts: int) -> None:
        """Count so many more of some."""
        if not any(counts.values()) or self._descriptor is None:
            return
        own = self._local.__dict__
        if own.get("pid") != os.getpid():
            # A fork begins at nought.
            own.update(pid=os.getpid(), place=None, counts=dict.fromkeys(self.names, 0))
        for name, count in counts.items():
            own["counts"][name] += count
        with suppress(OSError):
            if own["place"] is None:
                own["place"] = self._place()
            os.pwrite(self._descriptor, self._record.pack(*own["counts"].values()), own["place"])

    def _place(self) -> int:
        """Where there is room for a record; what is appended at once with others lies apart."""
        end = os.open(f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(end, bytes(self._record.size))
            return os.lseek(end, 0, os.SEEK_CUR) - self._record.size
        finally:
            os.close(end)

    def totals(self) -> dict[str, int]:
        """What all have counted."""
        totals = [0] * len(self.names)
        if self._descriptor is not None:
            size = os.fstat(self._descriptor).st_size
            for record in self._record.iter_unpack(os.pread(self._descriptor, size, 0)):
                totals = [a + b for a, b in zip(totals, record, strict=True)]
        return dict(zip(self.names, totals, strict=True))
