"""What the node knows of a job that reads a dataset: one life, and one epoch at a time.

The node tells jobs by name. A job that is started again under its name has another life, and
whoever still reports from the former one is refused (`forebay.Fenced`).
"""

from __future__ import annotations

import os
import secrets
import weakref
from pathlib import Path

from forebay._native import Digest, Reader


class Participation:
    """A dataset's, in one process."""

    def __init__(self) -> None:
        self._pid = 0
        self.life = 0
        #: Epochs that were begun; no two have the same number.
        self.epochs = 0
        #: What the node calls this process.
        self._name = ""
        self._speaker: weakref.ref[object] | None = None
        self._has_joined = False

    def begin(self, speaker: object, name: str) -> int:
        """From now on ``speaker`` reports, by that name; returns the number of its epoch."""
        if self._pid != os.getpid():
            # A fork of the main process is somebody else.
            self._pid, self.life = os.getpid(), secrets.randbits(63)
        self._speaker, self._name = weakref.ref(speaker), name
        self.epochs += 1
        self._has_joined = True
        return self.epochs

    def is_spoken_for_by(self, epoch: object) -> bool:
        """Whether this one reports: whatever began last does."""
        return self._speaker is not None and self._speaker() is epoch

    def fenced(self) -> None:
        """The name is somebody else's now: there is nothing to take leave of."""
        self._speaker, self._has_joined = None, False

    def end(self, digest: Digest, node: Path | str | None, agent: Path) -> None:
        """Take leave, if that is possible: nothing need be kept for a job that has ended."""
        if self._has_joined and self._pid == os.getpid():
            self._has_joined = False
            Reader(digest, node, agent, self._name).leave()
