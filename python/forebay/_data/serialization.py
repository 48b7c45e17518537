"""Serialization of a wrapped dataset's items and keys.

Items of type ``bytes`` are stored unchanged; all others are pickled. An item should give the same
bytes whenever it is read, because another hash counts as a changed item. Dense tensors are
therefore pickled by their elements: PyTorch's own pickles contain storage keys that depend on
memory addresses.
"""

from __future__ import annotations

import io
import operator
import pickle
import struct
import sys
from contextlib import suppress
from hashlib import blake2b
from typing import Any

#: The form of an item: its own bytes, or a pickle. Stored in catalogues.
BYTES, PICKLE = 0, 1

_PROTOCOL = 5


def pack(item: Any) -> tuple[int, bytes]:
    """An item's form and bytes; raises the pickler's exception if it cannot be pickled."""
    if type(item) is bytes:
        return BYTES, item
    buffer = io.BytesIO()
    _Pickler(buffer, _PROTOCOL).dump(item)
    return PICKLE, buffer.getvalue()


def unpack(form: int, content: bytes) -> Any:
    """The item of these bytes.

    **Invariant:** the caller has verified that a process of this user wrote the bytes: unpickling
    runs code.
    """
    if form == BYTES:
        return content
    if form == PICKLE:
        return pickle.loads(content)
    raise ValueError(f"there is no item form {form}; use the forebay that wrote the catalogue")


class _Pickler(pickle.Pickler):
    def reducer_override(self, item: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(item) is not torch.Tensor or not _is_plain(torch, item):
            return NotImplemented
        elements = item.contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (elements.tobytes(), item.dtype, tuple(item.shape))


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Whether a tensor is fully described by its elements, dtype and shape."""
    return bool(
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not getattr(tensor, "has_names", bool)()  # removed from newer PyTorch
        and not tensor.__dict__
    )


def _tensor(elements: bytes, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    if not elements:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(elements), dtype=dtype).reshape(shape)


def hash_key(key: Any) -> bytes:
    """The hash by which a catalogue finds a key."""
    return blake2b(_encoded(key, key), digest_size=32).digest()


def _encoded(part: Any, key: Any) -> bytes:
    """An injective encoding of keys that is the same in every process and Python version."""
    if isinstance(part, str):
        return _with_length(b"s", part.encode(errors="surrogatepass"))
    if isinstance(part, bytes):
        return _with_length(b"b", part)
    if isinstance(part, bool):
        return b"t" if part else b"f"
    if isinstance(part, float):
        return b"d" + struct.pack("<d", part)
    if isinstance(part, tuple):
        return _with_length(b"(", b"".join(_encoded(one, key) for one in part))
    if part is None and key is not None:
        return b"n"
    with suppress(TypeError):
        return _with_length(b"i", str(operator.index(part)).encode())
    raise TypeError(
        f"the key {key!r} does not identify an item; give a str, bytes, int or float, or a tuple of"
        " them, such as (path, modified)"
    )


def _with_length(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<Q", len(content)) + content
