"""Deferred interrupts: a Ctrl-C that is raised when a block of code has ended.

Python raises ``KeyboardInterrupt`` between any two bytecodes: after a batch was taken from one
queue and before it is in the next, or inside a hook around a fork, where Python prints and drops
it. In a deferring block the first Ctrl-C is noted and raised at the end of the block. A second
Ctrl-C is raised at once.

Python handles signals in the main thread only; in other threads these functions do nothing.
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


class _DeferringHandler:
    """A handler of SIGINT that notes the signal for the handler that it replaces."""

    def __init__(self, handler: _Handler) -> None:
        self.handler = handler
        self.noted: tuple[int, FrameType | None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.noted is not None:
            self.handler(number, frame)
        self.noted = (number, frame)

    def raise_noted(self) -> None:
        if self.noted is not None:
            noted, self.noted = self.noted, None
            self.handler(*noted)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, or of the outermost such block."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _DeferringHandler) or not callable(handler) or not _is_main_thread():
        yield
        return
    deferring = _DeferringHandler(handler)
    signal.signal(signal.SIGINT, deferring)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        deferring.raise_noted()


@contextmanager
def allow_interrupts() -> Iterator[None]:
    """Raise Ctrl-C at once within this block, also inside a deferring block."""
    deferring = _current()
    if deferring is None:
        yield
        return
    signal.signal(signal.SIGINT, deferring.handler)
    try:
        deferring.raise_noted()
        yield
    finally:
        signal.signal(signal.SIGINT, deferring)


def raise_deferred() -> None:
    """Raise a Ctrl-C that was deferred so far."""
    deferring = _current()
    if deferring is not None:
        deferring.raise_noted()


def _current() -> _DeferringHandler | None:
    handler = signal.getsignal(signal.SIGINT)
    return handler if isinstance(handler, _DeferringHandler) and _is_main_thread() else None


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _after_fork_in_child() -> None:
    """A forked child does not defer."""
    deferring = _current()
    if deferring is not None:
        signal.signal(signal.SIGINT, deferring.handler)


os.register_at_fork(after_in_child=_after_fork_in_child)
