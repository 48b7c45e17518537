"""Ctrl-C that waits while things are done which belong together.

Python raises ``KeyboardInterrupt`` between any two steps: after a batch was taken from one book and
before it is in the other, or inside of a hook that Python runs around a fork, where it is printed
and forgotten. While it is held, it is noted, and raised when the block has ended. Whoever presses
Ctrl-C a second time does not want to wait: that one is raised at once.

Signals are handled in the main thread; in others nothing is held, since nothing is raised there.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any]


class _Hold:
    """What was there before Ctrl-C was held, and what has come since."""

    def __init__(self, handler: _Handler) -> None:
        self.handler = handler
        self.noted: tuple[int, FrameType | None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.noted is not None:
            self.handler(number, frame)
        self.noted = (number, frame)

    def deliver(self) -> None:
        if self.noted is not None:
            noted, self.noted = self.noted, None
            self.handler(*noted)


@contextmanager
def held() -> Iterator[None]:
    """Ctrl-C waits until the block has ended; within another such block, until that has."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _Hold) or not callable(handler) or not _is_main_thread():
        yield
        return
    hold = _Hold(handler)
    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        hold.deliver()


@contextmanager
def let_through() -> Iterator[None]:
    """Within a block in which Ctrl-C is held, one in which it is not."""
    hold = _current()
    if hold is None:
        yield
        return
    signal.signal(signal.SIGINT, hold.handler)
    try:
        hold.deliver()
        yield
    finally:
        signal.signal(signal.SIGINT, hold)


def deliver() -> None:
    """Raise what has been held so far."""
    hold = _current()
    if hold is not None:
        hold.deliver()


def _current() -> _Hold | None:
    handler = signal.getsignal(signal.SIGINT)
    return handler if isinstance(handler, _Hold) and _is_main_thread() else None


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _forked() -> None:
    """A child has nothing to wait for."""
    hold = _current()
    if hold is not None:
        signal.signal(signal.SIGINT, hold.handler)


os.register_at_fork(after_in_child=_forked)
