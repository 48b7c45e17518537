"""An informed storage cache for machine learning.

``Dataset`` reads the items of a digest through this machine's cache, ``wrap`` those of any other
dataset; ``DataLoader`` is PyTorch's, and draws what is cached first. ``forebay.torch`` has
embedding tables larger than memory. ``import forebay`` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING

from forebay._dataset import Dataset
from forebay._native import (
    AgentGone,
    ChangedError,
    DigestError,
    Fenced,
    ForebayError,
    ReadError,
    StateError,
    TableError,
)
from forebay._tar import tar_sample
from forebay._wrap import wrap

if TYPE_CHECKING:
    from forebay._iterable import IterableDataset as IterableDataset
    from forebay._loader import DataLoader as DataLoader
    from forebay._mixture import Mixture as Mixture
    from forebay._sampler import Sampler as Sampler
    from forebay._workers import WorkerError as WorkerError

__version__ = _version("forebay")

__all__ = [
    "AgentGone",
    "ChangedError",
    "DataLoader",
    "Dataset",
    "DigestError",
    "Fenced",
    "ForebayError",
    "IterableDataset",
    "Mixture",
    "ReadError",
    "Sampler",
    "StateError",
    "TableError",
    "WorkerError",
    "__version__",
    "tar_sample",
    "wrap",
]


#: What needs torch is imported when it is first asked for.
_WITH_TORCH = {
    "DataLoader": "forebay._loader",
    "IterableDataset": "forebay._iterable",
    "Mixture": "forebay._mixture",
    "Sampler": "forebay._sampler",
    "WorkerError": "forebay._workers",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *_WITH_TORCH})


def __getattr__(name: str) -> object:
    if name in _WITH_TORCH:
        return getattr(import_module(_WITH_TORCH[name]), name)
    raise AttributeError(f"module 'forebay' has no attribute {name!r}")
