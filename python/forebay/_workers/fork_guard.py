"""What a forked child may still read.

A child that is forked has all that its parent has, also what lies in memory that the parent gives
back to others as soon as it is done with it. So nothing is given back before no child is left that
was forked while it was in use. Every such fork inherits the writing end of a pipe; the pipe ends
when the child, and whoever came of it, has ended or runs another program.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class _Fork:
    """A child, and all who come of it."""

    def __init__(self) -> None:
        self._reading, self._writing = -1, -1
        with suppress(OSError):  # without a pipe it is taken to live for ever
            self._reading, self._writing = os.pipe()
            os.set_blocking(self._reading, False)

    def has_begun(self) -> None:
        """From now on only the child has the writing end."""
        with suppress(OSError):
            os.close(self._writing)

    def is_over(self) -> bool:
        try:
            return os.read(self._reading, 1) == b""
        except OSError:  # somebody could still write
            return False

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._reading)


class _Lent:
    """Something that this process uses, and the forks that may."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back, self._pid = give_back, os.getpid()
        self.forks: list[_Fork] = []

    def has_gone(self) -> None:
        """This process is done with it; a child has no say in that."""
        if self._pid == os.getpid():
            _lent.discard(self)
            _waiting.add(self)
            settle()

    def settle(self) -> None:
        if all(fork.is_over() for fork in self.forks):
            with suppress(KeyError):  # another thread has done it
                _waiting.remove(self)
                self._give_back()


#: In use here.
_lent: set[_Lent] = set()
#: Not in use here any more, but perhaps by forks.
_waiting: set[_Lent] = set()
#: The fork that a thread is about to make.
_thread = threading.local()


def give_back(lease: Any, function: Callable[[], None]) -> None:
    """Call a function when this object is gone, here and in all forks that have a copy of it.

    Forks are not watched: that they have ended is noticed at the next :func:`settle`.
    """
    lent = _Lent(function)
    _lent.add(lent)
    weakref.finalize(lease, lent.has_gone).atexit = False


def settle() -> None:
    """Give back what only forks had that are over."""
    for lent in _waiting.copy():
        lent.settle()


def _before() -> None:
    _thread.fork = None
    if _lent:
        _thread.fork = fork = _Fork()
        for lent in _lent.copy():
            lent.forks.append(fork)


def _in_parent() -> None:
    fork: _Fork | None = _thread.__dict__.pop("fork", None)
    if fork is not None:
        fork.has_begun()


def _in_child() -> None:
    _thread.__dict__.clear()
    _lent.clear()
    _waiting.clear()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
