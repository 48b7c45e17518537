"""Batches from workers to the main process, through memory that both share.

PyTorch pickles what a worker has made through a pipe, byte for byte, and makes new shared memory
for every tensor. Here all batches of a worker share one strip of memory that is used again and
again: whatever is large in a batch, ``bytes``, views, arrays and tensors, is copied there once, and
only where it lies goes through the pipe, with what is small. The main process gives out arrays,
tensors and views of that memory itself; a batch keeps its place until nothing of it is left there.

There are no locks. A worker takes a place by raising its flag, and the main process lets go of it
by lowering the flag again; nobody else touches either. A batch for which there is no room, because
the user keeps many of them, is pickled as a whole.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import secrets
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from forebay._warnings import warn

#: What one worker's batches may take; memory that no batch has needed yet is not there.
STRIP_BYTES = 256 << 20
#: Batches of one worker that may be on their way, or in use. Each has a flag: the first page.
FLAGS = mmap.PAGESIZE
#: Less is pickled faster than it is placed.
PLACED_MIN = 4096
#: Tensors and arrays begin where any processor likes to read them.
ALIGNMENT = 64

#: What is placed: how it is made again, where it begins in its batch, its length, and its shape.
_Part = tuple[str, int, int, Any, tuple[int, ...]]


class Arena:
    """The memory of all workers of a loader: a strip for each. Pickles to spawned workers."""

    def __init__(self, workers: int) -> None:
        self.name, self._strip_bytes = secrets.token_hex(8), STRIP_BYTES
        self._map(os.memfd_create("forebay-batches"), workers * STRIP_BYTES)
        _ARENAS[self.name] = self

    def _map(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, size)
        self._bytes = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)

    def __getstate__(self) -> tuple[str, int, Any, int]:
        descriptor = reduction.DupFd(self._descriptor)
        return self.name, self._strip_bytes, descriptor, len(self._bytes)

    def __setstate__(self, state: tuple[str, int, Any, int]) -> None:
        self.name, self._strip_bytes, descriptor, size = state
        self._map(descriptor.detach(), size)

    def strip(self, worker: int) -> Any:
        """The memory of one worker, its flags first."""
        return self._bytes[worker * self._strip_bytes : (worker + 1) * self._strip_bytes]


#: Those of this process, by name.
_ARENAS: weakref.WeakValueDictionary[str, Arena] = weakref.WeakValueDictionary()


class Places:
    """Which of a strip's places are taken: the worker's side."""

    def __init__(self, strip: Any) -> None:
        self._strip = strip
        #: By flag: where it begins, and where it ends.
        self._taken: dict[int, tuple[int, int]] = {}

    def take(self, length: int) -> tuple[int, int] | None:
        """A flag and where its place begins: the lowest that is free, which was used before."""
        for flag in [flag for flag in self._taken if not self._strip[flag]]:
            del self._taken[flag]
        begin = FLAGS
        for start, end in sorted(self._taken.values()):
            if start - begin >= length:
                break
            begin = end
        if len(self._taken) == FLAGS or begin + length > len(self._strip):
            return None
        flag = next(flag for flag in range(FLAGS) if flag not in self._taken)
        self._taken[flag] = (begin, begin + length)
        self._strip[flag] = 1
        return flag, begin


@dataclass(frozen=True)
class Place:
    """Where the large parts of a batch lie."""

    arena: str
    worker: int
    flag: int
    begin: int
    length: int

    def lease(self) -> Any:
        """The memory, in the main process; its flag is lowered when no part of it is in use."""
        strip = _ARENAS[self.arena].strip(self.worker)
        # An array of its own, on which all parts hang; slices of the strip would hang on that.
        lease = np.frombuffer(strip[self.begin : self.begin + self.length].data, np.uint8)
        weakref.finalize(lease, _lower, strip, self.flag, os.getpid()).atexit = False
        return lease


class Packed:
    """A batch on its way: small things pickled, large ones in their place."""

    def __init__(self, pickled: bytes, place: Place | None = None) -> None:
        self._pickled, self._place = pickled, place

    def unpack(self) -> Any:
        """The batch."""
        lease = None if self._place is None else self._place.lease()
        return _Unpickler(self._pickled, lease).load()

    def pin_memory(self) -> Any:
        """PyTorch's thread asks for this."""
        return pin_memory(self.unpack())  # type: ignore[no-untyped-call]


def _lower(strip: Any, flag: int, process: int) -> None:
    # A forked child has a copy of the batch, and no say in when its parent is done with it.
    if os.getpid() == process:
        strip[flag] = 0


class Packing:
    """What workers collate with: the user's function, and packing."""

    def __init__(self, collate: Callable[[Any], Any], arena: Arena | None) -> None:
        self._collate, self._arena = collate, arena
        self._places: Places | None = None

    def __call__(self, samples: Any) -> Packed:
        batch = self._collate(samples)
        if self._arena is None:
            return Packed(_Pickler().dump_all(batch))
        pickler = _Pickler(leaves_out=True)
        pickled = pickler.dump_all(batch)
        if not pickler.parts:
            return Packed(pickled)
        worker = get_worker_info()
        assert worker is not None, "batches are packed in workers"
        strip = self._arena.strip(worker.id)
        if self._places is None:
            self._places = Places(strip)
        taken = self._places.take(pickler.length)
        if taken is None:
            return Packed(_Pickler().dump_all(batch))
        flag, begin = taken
        for (_, offset, length, _, _), content in pickler.parts.values():
            strip[begin + offset : begin + offset + length] = content
        return Packed(pickled, Place(self._arena.name, worker.id, flag, begin, pickler.length))


class _Pickler(reduction.ForkingPickler):
    """Leaves out what is large, if it is to, and notes where it belongs."""

    def __init__(self, leaves_out: bool = False) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, pickle.HIGHEST_PROTOCOL)
        self._leaves_out = leaves_out
        #: By identity, since one object may be several times in a batch. Holds on to each.
        self.parts: dict[int, tuple[_Part, Any]] = {}
        self._held: list[Any] = []
        self.length = 0

    def dump_all(self, batch: Any) -> bytes:
        self.dump(batch)
        return self._file.getvalue()

    def persistent_id(self, value: Any) -> _Part | None:
        if not self._leaves_out:
            return None
        known = self.parts.get(id(value))
        if known is not None:
            return known[0]
        flat = _flat(value)
        if flat is None:
            return None
        kind, content, dtype, shape = flat
        part: _Part = (kind, self.length, len(content), dtype, shape)
        self.parts[id(value)] = (part, content)
        self._held.append(value)
        self.length += -(-len(content) // ALIGNMENT) * ALIGNMENT
        return part

    def reducer_override(self, value: Any) -> Any:
        # Nobody else pickles a view: it goes as a copy.
        if type(value) is memoryview:
            return memoryview, (bytes(value),)
        # PyTorch makes shared memory for every tensor, however small, and passes it on through a
        # socket in a directory, which a worker that is killed leaves behind.
        if type(value) is torch.Tensor and value.device.type == "cpu":
            if _is_plain(value):
                return _tensor, (_bytes_of(value).tobytes(), value.dtype, tuple(value.shape))
            if value.is_leaf:
                return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
        if isinstance(value, _STORAGES) and value.device.type == "cpu":
            return value.__reduce__()  # type: ignore[no-untyped-call]
        return NotImplemented


#: What lies behind tensors.
_STORAGES = (torch.UntypedStorage, torch.storage.TypedStorage)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor of the CPU is told by its bytes, type and shape alone."""
    if tensor.layout != torch.strided or tensor.requires_grad or tensor.is_quantized:
        return False
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.view(-1).view(torch.uint8).numpy()


def _tensor(content: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not content:  # of which PyTorch makes nothing
        return torch.empty(shape, dtype=dtype)
    # Of a copy, since it is the user's to write to.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(dtype).view(shape)


def _flat(value: Any) -> tuple[str, Any, Any, tuple[int, ...]] | None:
    """How something is made again, its bytes, and what else that takes; nothing, if it is small, or
    not to be told by its bytes alone.
    """
    if type(value) is bytes and len(value) >= PLACED_MIN:
        return "bytes", np.frombuffer(value, np.uint8), None, ()
    if type(value) is memoryview and value.nbytes >= PLACED_MIN and value.contiguous:
        return "view", np.frombuffer(value, np.uint8), None, ()
    if type(value) is torch.Tensor and value.device.type == "cpu" and value.nbytes >= PLACED_MIN:
        if _is_plain(value):
            return "tensor", _bytes_of(value), value.dtype, tuple(value.shape)
        return None
    if type(value) is np.ndarray and value.nbytes >= PLACED_MIN and value.flags.c_contiguous:
        if value.dtype.hasobject:
            return None
        return "array", value.reshape(-1).view(np.uint8), value.dtype, value.shape
    return None


class _Unpickler(pickle.Unpickler):
    """Puts back what was left out."""

    def __init__(self, pickled: bytes, lease: Any) -> None:
        super().__init__(io.BytesIO(pickled))
        self._lease = lease
        self._found: dict[int, Any] = {}

    def persistent_load(self, part: _Part) -> Any:
        kind, offset, length, dtype, shape = part
        if offset not in self._found:
            flat = self._lease[offset : offset + length]
            made: Any
            if kind == "bytes":
                made = flat.tobytes()
            elif kind == "view":
                made = memoryview(flat).toreadonly()
            elif kind == "tensor":
                made = torch.from_numpy(flat).view(dtype).view(shape)
            else:
                made = flat.view(dtype).reshape(shape)
            self._found[offset] = made
        return self._found[offset]


def arena(workers: int) -> Arena | None:
    """Memory for so many workers; where there is none to be had, batches are pickled."""
    try:
        return Arena(workers)
    except OSError as problem:
        warn(f"no memory to share with workers ({problem}): their batches are pickled")
        return None
