"""Batches in shared memory: from workers to the main process, with one copy at most.

PyTorch pickles a worker's batch through a pipe and creates new shared memory for every tensor.
Here, ``bytes``, views, arrays and tensors of at least 4 KiB are copied to a slot of the worker's
strip (``shm_arena``), or were collated there (``collate``); the pipe carries the slots and a pickle
of the rest. The main process gives out arrays, tensors and views of that memory. A batch for which
there is no space, because the user keeps many, is pickled as a whole.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from forebay._workers.collate import collating_into
from forebay._workers.shm_arena import ARENAS, SHM_BYTES_MIN, Arena, Slot, SlotAllocator, aligned

#: Freed memory that a process keeps for the next batch: that of a few batches.
KEPT_BYTES = 32 << 20

#: A value in shared memory: its kind, the number of its slot, its offset there, its length, dtype
#: and shape.
_Part = tuple[str, int, int, int, Any, tuple[int, ...]]
#: Number of the slot of copied values. Each collated value has a slot of its own.
COPIED = 0


class PackedBatch:
    """A batch on its way: small values pickled, large ones in slots."""

    def __init__(self, pickled: bytes, slots: Sequence[Slot | None] = ()) -> None:
        self._pickled, self._slots = pickled, slots

    def unpack(self) -> Any:
        """The batch, in the main process."""
        memories = [
            None if slot is None else ARENAS[slot.arena].borrow(slot) for slot in self._slots
        ]
        return _Unpickler(self._pickled, memories).load()

    def pin_memory(self) -> Any:
        """The batch in pinned memory; PyTorch's pinning thread calls this."""
        return pin_memory(self.unpack())  # type: ignore[no-untyped-call]


class PackingCollate:
    """The ``collate_fn`` of workers: the user's function, then packing."""

    def __init__(self, collate: Callable[[Any], Any], arena: Arena | None) -> None:
        self._collate, self._arena = collate, arena
        self._slots: SlotAllocator | None = None

    def __call__(self, samples: Any) -> PackedBatch:
        if self._arena is None:
            with collating_into(lambda length: None):
                return PackedBatch(_Pickler().dump_all(self._collate(samples)))
        worker = get_worker_info()
        assert worker is not None, "batches are packed in workers"
        if self._slots is None:
            keep_freed_memory()
            self._slots = SlotAllocator(self._arena.strip(worker.id))
        with collating_into(self._slots.reserve):
            batch = self._collate(samples)
        pickler = _Pickler(self._slots)
        pickled = pickler.dump_all(batch)
        copied = None
        if pickler.length:
            sent = self._slots.send(pickler.length)
            if sent is None:
                return PackedBatch(_Pickler().dump_all(batch))
            copied = Slot(self._arena.name, worker.id, *sent, pickler.length)
            pickler.copy_to(self._arena.strip(worker.id)[copied.begin :])
        collated = [
            Slot(self._arena.name, worker.id, flag, self._slots.send_collated(flag), length)
            for flag, length in pickler.collated.items()
        ]
        return PackedBatch(pickled, [copied, *collated])


def keep_freed_memory() -> None:
    """Keep freed memory in the process, for the next batch.

    glibc returns free memory to the kernel above 128 KiB, and the kernel clears every page that it
    gives out again, which takes longer than all other work on an item. glibc's threshold is twice
    the largest block that was ever freed, so one is allocated and freed here.
    """
    bytearray(KEPT_BYTES // 2)


class _Pickler(reduction.ForkingPickler):
    """Leaves out large values if there are slots, and records where they belong."""

    def __init__(self, slots: SlotAllocator | None = None) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, pickle.HIGHEST_PROTOCOL)
        self._slots = slots
        #: Parts by identity: one object may be in a batch several times. Keeps the objects alive.
        self._parts: dict[int, tuple[_Part, Any]] = {}
        #: Values to copy, with their offsets, and their total length.
        self._copied: list[tuple[int, Any]] = []
        self.length = 0
        #: Lengths of collated values, by flag.
        self.collated: dict[int, int] = {}

    def dump_all(self, batch: Any) -> bytes:
        self.dump(batch)
        return self._file.getvalue()

    def persistent_id(self, value: Any) -> _Part | None:
        if self._slots is None:
            return None
        known = self._parts.get(id(value))
        if known is not None:
            return known[0]
        flat = _flat(value)
        if flat is None:
            return None
        kind, content, dtype, shape = flat
        length = len(content)
        flag = self._slots.find_collated(value.data_ptr(), length) if kind == "tensor" else None
        part: _Part
        if flag is not None and flag not in self.collated:
            self.collated[flag] = length
            part = (kind, COPIED + len(self.collated), 0, length, dtype, shape)
        else:
            self._copied.append((self.length, content))
            part = (kind, COPIED, self.length, length, dtype, shape)
            self.length += aligned(length)
        self._parts[id(value)] = (part, value)
        return part

    def copy_to(self, memory: Any) -> None:
        """Copy the values that were left out to their offsets."""
        memory = memoryview(memory)  # as fast as NumPy, with less overhead per copy
        for begin, content in self._copied:
            memory[begin : begin + len(content)] = content

    def reducer_override(self, value: Any) -> Any:
        # The standard library does not pickle views: they are sent as copies.
        if type(value) is memoryview:
            return memoryview, (bytes(value),)
        # PyTorch creates shared memory for every tensor, of any size, and sends it through a socket
        # in a directory, which a killed worker leaves behind.
        if type(value) is torch.Tensor and value.device.type == "cpu":
            if _is_plain(value):
                if value.is_contiguous():
                    return _tensor, (_bytes_of(value).tobytes(), value.dtype, tuple(value.shape))
                # Its elements without gaps, unless they overlap.
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
    """Whether a CPU tensor is fully described by its elements, dtype and shape."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return False
    return not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements are contiguous in memory, in any order."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.view(-1).view(torch.uint8).numpy()


def _tensor(content: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not content:  # torch.frombuffer refuses empty buffers
        return torch.empty(shape, dtype=dtype)
    # Of a copy, because the user may write to the tensor.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(dtype).view(shape)


def _flat(value: Any) -> tuple[str, Any, Any, tuple[int, ...]] | None:
    """The kind, bytes, dtype and shape of a value for shared memory.

    ``None`` if the value is small, or not fully described by these.
    """
    if type(value) is bytes and len(value) >= SHM_BYTES_MIN:
        return "bytes", value, None, ()
    if type(value) is memoryview and value.nbytes >= SHM_BYTES_MIN and value.c_contiguous:
        is_flat = value.format == "B" and value.ndim == 1
        return "view", value if is_flat else np.frombuffer(value, np.uint8), None, ()
    if type(value) is torch.Tensor and value.device.type == "cpu" and _is_plain(value):
        if value.nbytes >= SHM_BYTES_MIN and value.is_contiguous():
            return "tensor", _bytes_of(value), value.dtype, tuple(value.shape)
        return None
    if type(value) is np.ndarray and value.nbytes >= SHM_BYTES_MIN and value.flags.c_contiguous:
        if value.dtype.hasobject:
            return None
        return "array", value.reshape(-1).view(np.uint8), value.dtype, value.shape
    return None


class _Unpickler(pickle.Unpickler):
    """Puts the values that were left out back in."""

    def __init__(self, pickled: bytes, memories: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._memories = memories
        self._found: dict[tuple[int, int], Any] = {}

    def persistent_load(self, part: _Part) -> Any:
        kind, slot, offset, length, dtype, shape = part
        if (slot, offset) not in self._found:
            flat = self._memories[slot][offset : offset + length]
            value: Any
            if kind == "bytes":
                value = flat.tobytes()
            elif kind == "view":
                value = memoryview(flat).toreadonly()
            elif kind == "tensor":
                value = torch.from_numpy(flat).view(dtype).view(shape)
            else:
                value = flat.view(dtype).reshape(shape)
            self._found[slot, offset] = value
        return self._found[slot, offset]
