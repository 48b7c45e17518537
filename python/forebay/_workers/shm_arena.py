"""Shared-memory arena: the memory through which workers send batches, and who uses which part.

An arena has one strip per worker. The strip's first page has one flag per slot; the rest is slots,
which are reused. There are no locks: a worker raises the flag of a slot when it sends it, and only
the main process lowers it, when nothing refers to the slot's memory, here or in a forked child
(``fork_guard``). When the workers have ended, memory that is not in use returns to the kernel.

A slot in which a worker has collated stays reserved while the worker's own code refers to it, sent
or not. As with PyTorch's shared memory, writes to a tensor after it was sent are visible to the
main process.
"""

from __future__ import annotations

import mmap
import os
import secrets
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np

from forebay._runtime.warnings import warn
from forebay._workers.fork_guard import call_when_unused, free_released

#: Size of a worker's strip; pages that no batch has used take no memory.
STRIP_BYTES = 256 << 20
#: Slots of a strip: one flag each, in the first page.
FLAGS = mmap.PAGESIZE
#: Shortest content that gets a slot; pickling is faster below.
SHM_BYTES_MIN = 4096
#: Alignment of slots and of the tensors and arrays in them: a cache line.
ALIGNMENT = 64


class _Memory:
    """The mapping of an arena, and the slots that the main process uses."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._mapping = mmap.mmap(descriptor, size)
        self.bytes = np.frombuffer(self._mapping, np.uint8)
        #: Slots in use: end by begin.
        self._borrowed: dict[int, int] = {}
        self._has_ended = False

    def borrow(self, begin: int, length: int, flag: int) -> Any:
        """The memory of a slot; its flag is lowered when the memory is no longer in use."""
        free_released()
        memory = _base_array(self.bytes[begin : begin + length])
        self._borrowed[begin] = begin + length
        call_when_unused(memory, lambda: self._free(begin, flag))
        return memory

    def _free(self, begin: int, flag: int) -> None:
        del self._borrowed[begin]
        self.bytes[flag] = 0
        if self._has_ended:
            self._trim()

    def end(self, process: int) -> None:
        """The workers have ended; called in the main process only."""
        if os.getpid() == process:
            self._has_ended = True
            self._trim()

    def _trim(self) -> None:
        """Return unused memory to the kernel. Without any slot in use, the mapping itself goes."""
        before = 0
        for begin, end in sorted(self._borrowed.copy().items()):
            self._punch(before, begin)
            before = end
        if before:
            self._punch(before, len(self.bytes))

    def _punch(self, begin: int, end: int) -> None:
        begin, end = -(-begin // mmap.PAGESIZE), end // mmap.PAGESIZE
        if begin < end:
            with suppress(OSError):  # then the memory stays
                length = (end - begin) * mmap.PAGESIZE
                self._mapping.madvise(mmap.MADV_REMOVE, begin * mmap.PAGESIZE, length)


class Arena:
    """The shared memory of all workers of a loader. Pickles to spawned workers."""

    def __init__(self, workers: int) -> None:
        self.name, self._strip_bytes = secrets.token_hex(8), STRIP_BYTES
        self._map(os.memfd_create("forebay-batches"), workers * STRIP_BYTES)
        weakref.finalize(self, self._memory.end, os.getpid()).atexit = False
        ARENAS[self.name] = self

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
        """The memory of one worker, flags first."""
        return self._memory.bytes[worker * self._strip_bytes : (worker + 1) * self._strip_bytes]

    def borrow(self, slot: Slot) -> Any:
        """The memory of a slot, for the main process."""
        strip = slot.worker * self._strip_bytes
        return self._memory.borrow(strip + slot.begin, slot.length, strip + slot.flag)


#: Arenas of this process, by name.
ARENAS: weakref.WeakValueDictionary[str, Arena] = weakref.WeakValueDictionary()


def new_arena(workers: int) -> Arena | None:
    """An arena for this number of workers; ``None``, with a warning, without shared memory."""
    try:
        return Arena(workers)
    except OSError as problem:
        warn(f"no memory to share with workers ({problem}): their batches are pickled")
        return None


@dataclass(frozen=True)
class Slot:
    """A slot with content of a batch, as it is sent to the main process."""

    arena: str
    worker: int
    flag: int
    begin: int
    length: int


@dataclass
class _Reservation:
    """A slot as its worker sees it."""

    begin: int
    end: int
    #: Whether the slot was sent; then the main process lowers its flag.
    is_sent: bool = False
    #: Weak reference to the memory that the worker has collated in.
    collated: Callable[[], Any] = lambda: None


class SlotAllocator:
    """Allocation of the slots of a strip, in its worker."""

    def __init__(self, strip: Any) -> None:
        self._strip, self._address = strip, strip.ctypes.data
        self._reservations: dict[int, _Reservation] = {}

    def send(self, length: int) -> tuple[int, int] | None:
        """Allocate a slot and raise its flag; returns flag and begin, or ``None`` if full."""
        flag = self._allocate(length)
        if flag is None:
            return None
        return flag, self.send_collated(flag)

    def reserve(self, length: int) -> Any | None:
        """Memory to collate in; its slot is reserved while the memory is referred to."""
        flag = None if length < SHM_BYTES_MIN else self._allocate(length)
        if flag is None:
            return None
        begin = self._reservations[flag].begin
        memory = _base_array(self._strip[begin : begin + length])
        self._reservations[flag].collated = weakref.ref(memory)
        return memory

    def find_collated(self, address: int, length: int) -> int | None:
        """The flag of the unsent slot with exactly this memory."""
        begin = address - self._address
        if not FLAGS <= begin < len(self._strip):
            return None
        for flag, reservation in self._reservations.items():
            if reservation.begin == begin and not reservation.is_sent:
                memory = reservation.collated()
                return flag if memory is not None and len(memory) == length else None
        return None

    def send_collated(self, flag: int) -> int:
        """Raise the flag of a slot; returns its begin."""
        self._reservations[flag].is_sent = True
        self._strip[flag] = 1
        return self._reservations[flag].begin

    def _allocate(self, length: int) -> int | None:
        """The flag of the lowest free slot, whose pages are likely to be in use already."""
        for flag, reservation in [*self._reservations.items()]:
            if not self._strip[flag] and reservation.collated() is None:
                del self._reservations[flag]
        begin = FLAGS
        for reservation in sorted(self._reservations.values(), key=lambda one: one.begin):
            if reservation.begin - begin >= length:
                break
            begin = reservation.end
        if len(self._reservations) == FLAGS or begin + length > len(self._strip):
            return None
        flag = next(flag for flag in range(FLAGS) if flag not in self._reservations)
        self._reservations[flag] = _Reservation(begin, begin + aligned(length))
        return flag


def aligned(length: int) -> int:
    """A length rounded up to ``ALIGNMENT``."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def _base_array(memory: Any) -> Any:
    """An array that views made of it refer to; a slice would make them refer to the whole strip."""
    return np.frombuffer(memory.data, np.uint8)
