"""Fork guard: shared memory is not reused while a forked child may read it.

A forked child inherits everything of its parent, also views of memory that the parent returns to
workers when it is done with them. Memory is therefore returned only when no child is left that was
forked while it was in use. Each such child inherits the write end of a pipe. The pipe
reaches its end when the child and all its descendants have ended or run another program.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class _Fork:
    """A forked child with its descendants."""

    def __init__(self) -> None:
        self._read_end, self._write_end = -1, -1
        with suppress(OSError):  # without a pipe the child counts as alive
            self._read_end, self._write_end = os.pipe()
            os.set_blocking(self._read_end, False)

    def on_forked(self) -> None:
        """Close the parent's copy of the write end."""
        with suppress(OSError):
            os.close(self._write_end)

    def has_ended(self) -> bool:
        try:
            return os.read(self._read_end, 1) == b""
        except OSError:  # a write end is open
            return False

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._read_end)


class _Guarded:
    """Memory in use by this process, and perhaps by forked children."""

    def __init__(self, on_free: Callable[[], None]) -> None:
        self._on_free, self._pid = on_free, os.getpid()
        self.forks: list[_Fork] = []

    def on_released(self) -> None:
        """This process no longer uses the memory; a forked child's copy does not count."""
        if self._pid == os.getpid():
            _in_use.discard(self)
            _released.add(self)
            free_released()

    def free_if_unused(self) -> None:
        if all(fork.has_ended() for fork in self.forks):
            with suppress(KeyError):  # another thread has freed it
                _released.remove(self)
                self._on_free()


#: Memory that this process uses.
_in_use: set[_Guarded] = set()
#: Memory that only forked children may still use.
_released: set[_Guarded] = set()
#: The fork that a thread is about to make.
_thread = threading.local()


def call_when_unused(memory: Any, function: Callable[[], None]) -> None:
    """Call a function when this object is gone, here and in all forked children.

    The end of a child is noticed at the next :func:`free_released`.
    """
    guarded = _Guarded(function)
    _in_use.add(guarded)
    weakref.finalize(memory, guarded.on_released).atexit = False


def free_released() -> None:
    """Free memory whose children have ended."""
    for guarded in _released.copy():
        guarded.free_if_unused()


def _before_fork() -> None:
    _thread.fork = None
    if _in_use:
        _thread.fork = fork = _Fork()
        for guarded in _in_use.copy():
            guarded.forks.append(fork)


def _after_fork_in_parent() -> None:
    fork: _Fork | None = _thread.__dict__.pop("fork", None)
    if fork is not None:
        fork.on_forked()


def _after_fork_in_child() -> None:
    _thread.__dict__.clear()
    _in_use.clear()
    _released.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
