"""What a worker stacks is written where it is to lie, and not copied there.

In a worker, PyTorch's ``default_collate`` stacks tensors into new shared memory, since it is about
to send them: an object of the kernel's for every tensor of every batch, whose pages are all new.
Batches have shared memory of their own here (``_handover``), so that would be for nothing, and the
copying would come on top. While the user's function collates, memory that is asked for in this way
comes from there, if there is room, and else from this process alone, since it is pickled anyway:
what a container grants of ``/dev/shm`` may be little.

PyTorch has no public seam for this. ``SUPPORTED`` says whether what is replaced here is still what
it was; if not, all that is stacked is copied.
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
def stacking_into(reserve: Callable[[int], Any | None]) -> Iterator[None]:
    """New shared memory of this thread's is what this function returns, an array of so many bytes;
    if that is nothing, it is not shared.
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
