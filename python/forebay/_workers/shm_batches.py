"""Batches from workers to the main process, through memory that both share.

PyTorch pickles what a worker has made through a pipe, byte for byte, and makes new shared memory
for every tensor. Here all batches of a worker share one strip of memory that is used again and
again: whatever is large in a batch, ``bytes``, views, arrays and tensors, is copied there once, or
was stacked there (``_stacking``), and only where it lies goes through the pipe, with what is small.
The main process gives out arrays, tensors and views of that memory itself; a batch keeps its place
until nothing of it is left there, nor in a child that was forked meanwhile (``_forks``). When the
workers have ended, only what is still in use stays in memory.

There are no locks. A worker sends a place by raising its flag, and the main process lets go of it
by lowering the flag again; nobody else touches either. What was stacked keeps its place for as
long as the worker's own code refers to it, too, sent or not; and as with PyTorch's shared memory,
whoever keeps what he has sent sees what is written to it. A batch for which there is no room,
because the user keeps many of them, is pickled as a whole.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import secrets
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from forebay._forks import give_back, settle
from forebay._stacking import stacking_into
from forebay._warnings import warn

#: What one worker's batches may take; memory that no batch has needed yet is not there.
STRIP_BYTES = 256 << 20
#: Batches of one worker that may be on their way, or in use. Each has a flag: the first page.
FLAGS = mmap.PAGESIZE
#: Less is pickled faster than it is placed.
PLACED_MIN = 4096
#: Tensors and arrays begin where any processor likes to read them.
ALIGNMENT = 64

#: What a process keeps of the memory that it has freed: that of a few batches.
KEPT_BYTES = 32 << 20

#: What is placed: how it is made again, in which of its batch's places, where it begins there, its
#: length, its type, and its shape.
_Part = tuple[str, int, int, int, Any, tuple[int, ...]]
#: The place of what is copied, among those of its batch. Whatever was stacked has one of its own.
COPIED = 0


class _Memory:
    """What is mapped, and what of it the main process has in use."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._mapped = mmap.mmap(descriptor, size)
        self.bytes = np.frombuffer(self._mapped, np.uint8)
        #: Where each place in use begins and ends.
        self._leased: dict[int, int] = {}
        self._has_ended = False

    def lease(self, begin: int, length: int, flag: int) -> Any:
        """A place; its flag is lowered when no part of it is in use."""
        settle()
        lease = _array_of_its_own(self.bytes[begin : begin + length])
        self._leased[begin] = begin + length
        give_back(lease, lambda: self._give_back(begin, flag))
        return lease

    def _give_back(self, begin: int, flag: int) -> None:
        del self._leased[begin]
        self.bytes[flag] = 0
        if self._has_ended:
            self._trim()

    def end(self, process: int) -> None:
        """Nobody writes any more; that is for the main process to say."""
        if os.getpid() == process:
            self._has_ended = True
            self._trim()

    def _trim(self) -> None:
        """Give the kernel back what is not in use. Without any places in use, all of it goes."""
        before = 0
        for begin, end in sorted(self._leased.copy().items()):
            self._free(before, begin)
            before = end
        if before:
            self._free(before, len(self.bytes))

    def _free(self, begin: int, end: int) -> None:
        begin, end = -(-begin // mmap.PAGESIZE), end // mmap.PAGESIZE
        if begin < end:
            with suppress(OSError):  # then it stays
                length = (end - begin) * mmap.PAGESIZE
                self._mapped.madvise(mmap.MADV_REMOVE, begin * mmap.PAGESIZE, length)


class Arena:
    """The memory of all workers of a loader: a strip for each. Pickles to spawned workers."""

    def __init__(self, workers: int) -> None:
        self.name, self._strip_bytes = secrets.token_hex(8), STRIP_BYTES
        self._map(os.memfd_create("forebay-batches"), workers * STRIP_BYTES)
        weakref.finalize(self, self._memory.end, os.getpid()).atexit = False
        _ARENAS[self.name] = self

    def _map(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, size)
        self._memory = _Memory(descriptor, size)

    def __getstate__(self) -> tuple[str, int, Any, int]:
        descriptor = reduction.DupFd(self._descriptor)
        return self.name, self._strip_bytes, descriptor, len(self._memory.bytes)

    def __setstate__(self, state: tuple[str, int, Any, int]) -> None:
        self.name, self._strip_bytes, descriptor, size = state
        self._map(descriptor.detach(), size)

    def strip(self, worker: int) -> Any:
        """The memory of one worker, its flags first."""
        return self._memory.bytes[worker * self._strip_bytes : (worker + 1) * self._strip_bytes]

    def lease(self, place: Place) -> Any:
        """A place of a batch, in the main process."""
        strip = place.worker * self._strip_bytes
        return self._memory.lease(strip + place.begin, place.length, strip + place.flag)


#: Those of this process, by name.
_ARENAS: weakref.WeakValueDictionary[str, Arena] = weakref.WeakValueDictionary()


@dataclass
class _Taken:
    """A place as its worker sees it."""

    begin: int
    end: int
    #: Whether the main process was told of it, and lowers its flag when it has done with it.
    is_sent: bool = False
    #: What the worker has stacked there: it, too, has to be done with it.
    stacked: Callable[[], Any] = lambda: None


class Places:
    """Which of a strip's places are taken: the worker's side."""

    def __init__(self, strip: Any) -> None:
        self._strip, self._address = strip, strip.ctypes.data
        self._taken: dict[int, _Taken] = {}

    def send(self, length: int) -> tuple[int, int] | None:
        """A flag, raised, and where its place begins."""
        flag = self._take(length)
        if flag is None:
            return None
        self.send_stacked(flag)
        return flag, self._taken[flag].begin

    def reserve(self, length: int) -> Any | None:
        """Memory to stack something in: a place for as long as it is referred to."""
        flag = None if length < PLACED_MIN else self._take(length)
        if flag is None:
            return None
        begin = self._taken[flag].begin
        memory = _array_of_its_own(self._strip[begin : begin + length])
        self._taken[flag].stacked = weakref.ref(memory)
        return memory

    def stacked(self, address: int, length: int) -> int | None:
        """The flag of a place that is as long, lies there, and was not sent before."""
        begin = address - self._address
        if not FLAGS <= begin < len(self._strip):
            return None
        for flag, taken in self._taken.items():
            if taken.begin == begin and not taken.is_sent:
                memory = taken.stacked()
                return flag if memory is not None and len(memory) == length else None
        return None

    def send_stacked(self, flag: int) -> int:
        """Raise a flag; where its place begins."""
        self._taken[flag].is_sent = True
        self._strip[flag] = 1
        return self._taken[flag].begin

    def _take(self, length: int) -> int | None:
        """The lowest place that is free, which was used before."""
        for flag, taken in [*self._taken.items()]:
            if not self._strip[flag] and taken.stacked() is None:
                del self._taken[flag]
        begin = FLAGS
        for taken in sorted(self._taken.values(), key=lambda taken: taken.begin):
            if taken.begin - begin >= length:
                break
            begin = taken.end
        if len(self._taken) == FLAGS or begin + length > len(self._strip):
            return None
        flag = next(flag for flag in range(FLAGS) if flag not in self._taken)
        self._taken[flag] = _Taken(begin, begin + _aligned(length))
        return flag


def _aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def _array_of_its_own(memory: Any) -> Any:
    """On which all hangs that is made of it. A slice of a strip would hang on that."""
    return np.frombuffer(memory.data, np.uint8)


@dataclass(frozen=True)
class Place:
    """Where large parts of a batch lie."""

    arena: str
    worker: int
    flag: int
    begin: int
    length: int


class Packed:
    """A batch on its way: small things pickled, large ones in their places."""

    def __init__(self, pickled: bytes, places: Sequence[Place | None] = ()) -> None:
        self._pickled, self._places = pickled, places

    def unpack(self) -> Any:
        """The batch."""
        leases = [
            None if place is None else _ARENAS[place.arena].lease(place) for place in self._places
        ]
        return _Unpickler(self._pickled, leases).load()

    def pin_memory(self) -> Any:
        """PyTorch's thread asks for this."""
        return pin_memory(self.unpack())  # type: ignore[no-untyped-call]


class Packing:
    """What workers collate with: the user's function, and packing."""

    def __init__(self, collate: Callable[[Any], Any], arena: Arena | None) -> None:
        self._collate, self._arena = collate, arena
        self._places: Places | None = None

    def __call__(self, samples: Any) -> Packed:
        if self._arena is None:
            with stacking_into(lambda length: None):
                return Packed(_Pickler().dump_all(self._collate(samples)))
        worker = get_worker_info()
        assert worker is not None, "batches are packed in workers"
        if self._places is None:
            keep_memory()
            self._places = Places(self._arena.strip(worker.id))
        with stacking_into(self._places.reserve):
            batch = self._collate(samples)
        pickler = _Pickler(self._places)
        pickled = pickler.dump_all(batch)
        copied = None
        if pickler.length:
            taken = self._places.send(pickler.length)
            if taken is None:
                return Packed(_Pickler().dump_all(batch))
            copied = Place(self._arena.name, worker.id, *taken, pickler.length)
            pickler.copy_to(self._arena.strip(worker.id)[copied.begin :])
        stacked = [
            Place(self._arena.name, worker.id, flag, self._places.send_stacked(flag), length)
            for flag, length in pickler.stacked.items()
        ]
        return Packed(pickled, [copied, *stacked])


def keep_memory() -> None:
    """What is freed with a batch is there for the next one.

    glibc gives free memory back to the kernel as soon as there are 128 KiB of it, and the kernel
    clears every page anew, which takes longer than all else that is done with an item. It keeps
    twice as much as the largest block that a process has ever freed; so one is.
    """
    bytearray(KEPT_BYTES // 2)


class _Pickler(reduction.ForkingPickler):
    """Leaves out what is large, if there are places for it, and notes where it belongs."""

    def __init__(self, places: Places | None = None) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, pickle.HIGHEST_PROTOCOL)
        self._places = places
        #: By identity, since one object may be several times in a batch. Holds on to each.
        self._parts: dict[int, tuple[_Part, Any]] = {}
        #: What is to be copied, by where it belongs, and how much that is.
        self._copied: list[tuple[int, Any]] = []
        self.length = 0
        #: What lies in a place of its own already: its length, by its flag.
        self.stacked: dict[int, int] = {}

    def dump_all(self, batch: Any) -> bytes:
        self.dump(batch)
        return self._file.getvalue()

    def persistent_id(self, value: Any) -> _Part | None:
        if self._places is None:
            return None
        known = self._parts.get(id(value))
        if known is not None:
            return known[0]
        flat = _flat(value)
        if flat is None:
            return None
        kind, content, dtype, shape = flat
        length = len(content)
        flag = self._places.stacked(value.data_ptr(), length) if kind == "tensor" else None
        part: _Part
        if flag is not None and flag not in self.stacked:
            self.stacked[flag] = length
            part = (kind, COPIED + len(self.stacked), 0, length, dtype, shape)
        else:
            self._copied.append((self.length, content))
            part = (kind, COPIED, self.length, length, dtype, shape)
            self.length += _aligned(length)
        self._parts[id(value)] = (part, value)
        return part

    def copy_to(self, memory: Any) -> None:
        """Put what was left out where it belongs."""
        memory = memoryview(memory)  # which copies as fast, and begins with that sooner
        for begin, content in self._copied:
            memory[begin : begin + len(content)] = content

    def reducer_override(self, value: Any) -> Any:
        # Nobody else pickles a view: it goes as a copy.
        if type(value) is memoryview:
            return memoryview, (bytes(value),)
        # PyTorch makes shared memory for every tensor, however small, and passes it on through a
        # socket in a directory, which a worker that is killed leaves behind.
        if type(value) is torch.Tensor and value.device.type == "cpu":
            if _is_plain(value):
                if value.is_contiguous():
                    return _tensor, (_bytes_of(value).tobytes(), value.dtype, tuple(value.shape))
                # Its elements without what lies between them, unless they share memory themselves.
                if value.nbytes <= value.untyped_storage().nbytes():
                    dense = value if _is_dense(value) else value.clone()
                    flat = dense.as_strided((dense.numel(),), (1,))
                    return torch.as_strided, (flat, tuple(value.shape), dense.stride())
            if value.is_leaf:
                return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]
        # Once for all tensors that share it.
        if type(value) is torch.UntypedStorage and value.device.type == "cpu":
            return torch.Tensor.untyped_storage, (torch.empty(0, dtype=torch.uint8).set_(value),)
        return NotImplemented


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor of the CPU is told by its elements, type and shape alone."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return False
    return not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie side by side, in whatever order."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


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
        return "bytes", value, None, ()
    if type(value) is memoryview and value.nbytes >= PLACED_MIN and value.c_contiguous:
        is_flat = value.format == "B" and value.ndim == 1
        return "view", value if is_flat else np.frombuffer(value, np.uint8), None, ()
    if type(value) is torch.Tensor and value.device.type == "cpu" and _is_plain(value):
        if value.nbytes >= PLACED_MIN and value.is_contiguous():
            return "tensor", _bytes_of(value), value.dtype, tuple(value.shape)
        return None
    if type(value) is np.ndarray and value.nbytes >= PLACED_MIN and value.flags.c_contiguous:
        if value.dtype.hasobject:
            return None
        return "array", value.reshape(-1).view(np.uint8), value.dtype, value.shape
    return None


class _Unpickler(pickle.Unpickler):
    """Puts back what was left out."""

    def __init__(self, pickled: bytes, leases: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._leases = leases
        self._found: dict[tuple[int, int], Any] = {}

    def persistent_load(self, part: _Part) -> Any:
        kind, place, offset, length, dtype, shape = part
        if (place, offset) not in self._found:
            flat = self._leases[place][offset : offset + length]
            made: Any
            if kind == "bytes":
                made = flat.tobytes()
            elif kind == "view":
                made = memoryview(flat).toreadonly()
            elif kind == "tensor":
                made = torch.from_numpy(flat).view(dtype).view(shape)
            else:
                made = flat.view(dtype).reshape(shape)
            self._found[place, offset] = made
        return self._found[place, offset]


def arena(workers: int) -> Arena | None:
    """Memory for so many workers; where there is none to be had, batches are pickled."""
    try:
        return Arena(workers)
    except OSError as problem:
        warn(f"no memory to share with workers ({problem}): their batches are pickled")
        return None
