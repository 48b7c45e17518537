"""Counts of all processes of a job: each thread has a file of its own, so that nobody waits for
anybody or is lost with a worker, and whoever asks adds them up.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class Tally:
    """Some counts, by name. Pickles to workers."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._pid = os.getpid()
        self._directory = Path(tempfile.mkdtemp(prefix="forebay-tally-"))
        weakref.finalize(self, _remove, self._directory, self._pid)
        self._local = threading.local()

    def __getstate__(self) -> tuple[tuple[str, ...], int, Path]:
        return self.names, self._pid, self._directory

    def __setstate__(self, state: tuple[tuple[str, ...], int, Path]) -> None:
        self.names, self._pid, self._directory = state
        self._local = threading.local()
        if not self._directory.is_dir():
            # It was pickled for later, and those who were counted then are gone.
            self.__init__(self.names)  # type: ignore[misc]

    def add(self, **counts: int) -> None:
        """Count so many more of some."""
        if not any(counts.values()):
            return
        own = self._local.__dict__
        if own.get("pid") != os.getpid():
            # A fork begins at nought.
            own.update(pid=os.getpid(), file=None, counts=dict.fromkeys(self.names, 0))
        for name, count in counts.items():
            own["counts"][name] += count
        with suppress(OSError):
            if own["file"] is None:
                descriptor, _ = tempfile.mkstemp(dir=self._directory)
                own["file"] = os.fdopen(descriptor, "wb", buffering=0)
            values = own["counts"].values()
            os.pwrite(own["file"].fileno(), struct.pack(f"<{len(values)}Q", *values), 0)

    def totals(self) -> dict[str, int]:
        """What all have counted."""
        layout = struct.Struct(f"<{len(self.names)}Q")
        totals = [0] * len(self.names)
        with suppress(OSError):
            for file in self._directory.iterdir():
                written = file.read_bytes()
                if len(written) == layout.size:
                    totals = [a + b for a, b in zip(totals, layout.unpack(written), strict=True)]
        return dict(zip(self.names, totals, strict=True))


def _remove(directory: Path, pid: int) -> None:
    """A fork of the main process must not."""
    if os.getpid() == pid:
        shutil.rmtree(directory, ignore_errors=True)
