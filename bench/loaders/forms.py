"""Forms of a batch: plain bytes, tensors, or decoded pictures. The same code for every loader.

``views`` is bytes as well, but a loader may return views of memory that it already has.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from loaders.items import SHORTEST

Batch = Any
Collate = Callable[[Sequence[Any]], Batch]

#: Width and height of a cropped picture.
CROP = 224
#: One byte of every page is read, so that no loader can return memory that it has not read.
PAGE = 4096


def collate(form: str) -> Collate:
    """The function that makes a batch of items' bytes, in this form."""
    made: Collate = _FORMS[form]
    return made


def as_bytes(contents: Sequence[Any]) -> list[Any]:
    """No collation, which would be the same for all loaders."""
    return list(contents)


def as_tensors(contents: Sequence[Any]) -> torch.Tensor:
    """The first ``SHORTEST`` bytes of each item, one row each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bytes are not writable
        rows = [torch.frombuffer(memoryview(one)[:SHORTEST], dtype=torch.uint8) for one in contents]
    made: torch.Tensor = torch.utils.data.default_collate(rows)
    return made


def as_pictures(contents: Sequence[Any]) -> torch.Tensor:
    """Decoded and centre-cropped."""
    made: torch.Tensor = torch.utils.data.default_collate([_picture(one) for one in contents])
    return made


def _picture(content: Any) -> torch.Tensor:
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    left, top = (picture.width - CROP) // 2, (picture.height - CROP) // 2
    cut = picture.crop((left, top, left + CROP, top + CROP))
    return torch.from_numpy(np.array(cut)).permute(2, 0, 1)


_FORMS: dict[str, Collate] = {
    "bytes": as_bytes,
    "views": as_bytes,
    "tensors": as_tensors,
    "decoded": as_pictures,
}
#: Forms that leave items unchanged.
PLAIN = ("bytes", "views")


def touch(batch: Batch) -> int:
    """Read a byte of every page of a batch. Returns its number of items."""
    if isinstance(batch, torch.Tensor):
        batch.view(-1)[::PAGE].sum()
    else:
        for content in batch:
            bytes(memoryview(content)[::PAGE])
    return len(batch)
