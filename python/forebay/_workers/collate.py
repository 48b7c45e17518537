"""Collation in shared memory: stacked tensors are written where they are sent from.

In a worker, PyTorch's ``default_collate`` stacks tensors into new shared memory, because it is
about to send them: one kernel object per tensor and batch, all of whose pages are new. forebay
sends batches through its own shared memory (``shm_batches``) and would copy them once more. While
the user's ``collate_fn`` runs, this module therefore replaces the allocation: memory comes from the
worker's strip, or, if that is full, from the process itself, because the batch is pickled then.
``/dev/shm``, which containers limit, is not used.

PyTorch has no public interface for this. ``SUPPORTED`` says whether the replaced function has the
expected signature; if not, stacked tensors are copied.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_NAME = "_new_shared"


def _is_supported() -> bool:
    function = getattr(torch.UntypedStorage, _NAME, None)
    if not inspect.ismethod(function):
        return False
    parameters = inspect.signature(function).parameters
    return [*parameters] == ["size", "device"] and (
        parameters["device"].kind is inspect.Parameter.KEYWORD_ONLY
    )


SUPPORTED = _is_supported()


@contextmanager
def collating_into(reserve: Callable[[int], Any | None]) -> Iterator[None]:
    """Take this thread's new shared storages from ``reserve`` until the block ends.

    ``reserve`` gets a number of bytes and returns an array, or ``None`` for memory of the process.
    """
    if not SUPPORTED:
        yield
        return
    own = vars(torch.UntypedStorage).get(_NAME)
    original = getattr(torch.UntypedStorage, _NAME)
    thread = threading.get_ident()

    def new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        if threading.get_ident() == thread and torch.device(device).type == "cpu":
            memory = reserve(size)
            return cls(size) if memory is None else torch.from_numpy(memory).untyped_storage()
        return original.__func__(cls, size, device=device)

    setattr(torch.UntypedStorage, _NAME, classmethod(new_shared))
    try:
        yield
    finally:
        if own is None:  # it was inherited
            delattr(torch.UntypedStorage, _NAME)
        else:
            setattr(torch.UntypedStorage, _NAME, own)
