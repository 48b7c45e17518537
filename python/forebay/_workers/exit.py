"""Exit of workers: a worker ends when its main process has ended, even one that starts later.

PyTorch's watchdog in a worker compares the parent process with the one that the worker had when its
loop began. If the main process was killed before that, the worker has been adopted by another
process and would wait for batches for ever. Here the watchdog gets the right process from the main
process itself.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from torch.utils.data._utils import worker


class WorkerInit:
    """The ``worker_init_fn`` of workers: the user's function, then the watchdog."""

    def __init__(self, loader: Any, main: int) -> None:
        self._function: Callable[[int], None] | None = loader.worker_init_fn
        context = loader.multiprocessing_context or multiprocessing
        # The parent of a forkserver's worker is the server, which ends with the main process.
        self._parent = None if context.get_start_method() == "forkserver" else main

    def __call__(self, number: int) -> None:
        if self._function is not None:
            self._function(number)
        if self._parent is not None:
            _watch(self._parent)


def _watch(parent: int) -> None:
    """Make PyTorch's watchdog in this worker watch the process ``parent``."""
    base: Any = getattr(worker, "ManagerWatchdog", None)
    if base is None:
        return  # PyTorch has changed; its own watchdog is used

    class Watchdog(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.manager_pid = parent

    worker.ManagerWatchdog = Watchdog  # type: ignore[misc]
