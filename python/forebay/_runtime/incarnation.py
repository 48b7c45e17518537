"""Incarnations: one run of a process under its job's name.

Nodes identify jobs by name. A process that starts under the name of an earlier one has another
incarnation, a random number; reports of the earlier incarnation are rejected (``forebay.Fenced``).
"""

from __future__ import annotations

import os
import secrets
import weakref
from pathlib import Path

from forebay._native import Digest, Reader


class Incarnation:
    """This process as nodes see it, for one dataset; one of its epochs reports at a time."""

    def __init__(self) -> None:
        self._pid = 0
        #: The random number of this incarnation.
        self.number = 0
        #: Epochs that have begun; each has a number of its own.
        self.epochs = 0
        #: The name under which the process reports.
        self._name = ""
        self._reporting: weakref.ref[object] | None = None
        self._has_joined = False

    def begin(self, epoch: object, name: str) -> int:
        """Let ``epoch`` report from now on, under this name; returns its number."""
        if self._pid != os.getpid():
            # A fork of the main process is another incarnation.
            self._pid, self.number = os.getpid(), secrets.randbits(63)
        self._reporting, self._name = weakref.ref(epoch), name
        self.epochs += 1
        self._has_joined = True
        return self.epochs

    def is_reporting(self, epoch: object) -> bool:
        """Whether this epoch reports: the one that began last does."""
        return self._reporting is not None and self._reporting() is epoch

    def on_fenced(self) -> None:
        """Stop reporting: another process has the name now."""
        self._reporting, self._has_joined = None, False

    def leave(self, digest: Digest, node: Path | str | None, agent: Path) -> None:
        """Tell the node, if possible, that the job has ended, so that it keeps nothing for it."""
        if self._has_joined and self._pid == os.getpid():
            self._has_joined = False
            Reader(digest, node, agent, self._name).leave()
