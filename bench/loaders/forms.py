"""What becomes of a batch: bytes as they are, tensors, or pictures. The same for everybody.

``views`` is bytes as well, for which each loader may hand out memory that it has anyway.
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

#: What a picture is cut to.
CROP = 224
#: One byte of every page is looked at, so that nobody hands out what he has not read.
PAGE = 4096


def collate(form: str) -> Collate:
    """What makes a batch of items' bytes, in this form."""
    made: Collate = _FORMS[form]
    return made


def as_bytes(contents: Sequence[Any]) -> list[Any]:
    """No collation: it would be the same for all."""
    return list(contents)


def as_tensors(contents: Sequence[Any]) -> torch.Tensor:
    """As many bytes of each as all have, one row each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that bytes cannot be written to
        rows = [torch.frombuffer(memoryview(one)[:SHORTEST], dtype=torch.uint8) for one in contents]
    made: torch.Tensor = torch.utils.data.default_collate(rows)
    return made


def as_pictures(contents: Sequence[Any]) -> torch.Tensor:
    """Decoded, and cut to a square from the middle."""
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
#: Forms in which items stay what they are.
PLAIN = ("bytes", "views")


def touch(batch: Batch) -> int:
    """Look at all of a batch, a byte of every page; how many items it has."""
    if isinstance(batch, torch.Tensor):
        batch.view(-1)[::PAGE].sum()
    else:
        for content in batch:
            bytes(memoryview(content)[::PAGE])
    return len(batch)
