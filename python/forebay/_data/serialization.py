"""What a user's items and keys are as bytes.

Items that are bytes stay as they are; everything else is pickled. The same item should be the same
bytes whenever it is read: what hashes otherwise counts as changed. So dense tensors are pickled by
their elements; PyTorch's own pickles name storages by where they happen to lie in memory.
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

#: What the bytes of an item are.
BYTES, PICKLE = 0, 1

_PROTOCOL = 5


def pack(item: Any) -> tuple[int, bytes]:
    """An item's form and bytes. Whatever a pickler raises, for items that cannot be pickled."""
    if type(item) is bytes:
        return BYTES, item
    buffer = io.BytesIO()
    _Pickler(buffer, _PROTOCOL).dump(item)
    return PICKLE, buffer.getvalue()


def unpack(form: int, content: bytes) -> Any:
    """The item; whoever calls this has made sure that the user's own process wrote these bytes."""
    if form == BYTES:
        return content
    if form == PICKLE:
        return pickle.loads(content)
    raise ValueError(f"there is no form {form}")


class _Pickler(pickle.Pickler):
    def reducer_override(self, item: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(item) is not torch.Tensor or not _is_plain(torch, item):
            return NotImplemented
        elements = item.contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (elements.tobytes(), item.dtype, tuple(item.shape))


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Whether elements and shape are all there is to a tensor."""
    return bool(
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not getattr(tensor, "has_names", bool)()  # gone from newer PyTorch
        and not tensor.__dict__
    )


def _tensor(elements: bytes, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    if not elements:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(elements), dtype=dtype).reshape(shape)


def hashed(key: Any) -> bytes:
    """A key by which a catalogue knows an item."""
    return blake2b(_spelt(key, key), digest_size=32).digest()


def _spelt(part: Any, key: Any) -> bytes:
    """No two keys are spelt alike, and each is in every process and Python the same."""
    if isinstance(part, str):
        return _counted(b"s", part.encode(errors="surrogatepass"))
    if isinstance(part, bytes):
        return _counted(b"b", part)
    if isinstance(part, bool):
        return b"t" if part else b"f"
    if isinstance(part, float):
        return b"d" + struct.pack("<d", part)
    if isinstance(part, tuple):
        return _counted(b"(", b"".join(_spelt(one, key) for one in part))
    if part is None and key is not None:
        return b"n"
    with suppress(TypeError):
        return _counted(b"i", str(operator.index(part)).encode())
    raise TypeError(
        f"the key {key!r} does not tell what an item is: give a str, bytes, int or float, or a"
        " tuple of them, such as (path, modified)"
    )


def _counted(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<Q", len(content)) + content
