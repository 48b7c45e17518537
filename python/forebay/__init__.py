"""An informed storage cache for machine learning.

``Dataset`` reads the items of a digest through this machine's cache; ``wrap`` caches any other
map-style dataset. ``DataLoader`` is PyTorch's loader with an order that takes cached items first.
``forebay.embeddings`` has embedding tables larger than memory, ``forebay.stream`` data that is
spilled and read back. ``import forebay`` does not import PyTorch and starts no thread.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING

from forebay._data.dataset import Dataset
from forebay._data.mixture import Mixture
from forebay._data.tar import tar_sample
from forebay._data.wrap import wrap
from forebay._native import (
    AgentGone,
    ChangedError,
    DigestError,
    Fenced,
    ForebayError,
    ReadError,
    StateError,
    StreamError,
    TableError,
)

if TYPE_CHECKING:
    from forebay._data.iterable import IterableDataset as IterableDataset
    from forebay._loader.dataloader import DataLoader as DataLoader
    from forebay._loader.sampler import Sampler as Sampler
    from forebay._workers.pool import WorkerError as WorkerError

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
    "StreamError",
    "TableError",
    "WorkerError",
    "__version__",
    "tar_sample",
    "wrap",
]


#: Modules that import PyTorch: they are imported when a name of theirs is first used.
_TORCH_MODULES = {
    "DataLoader": "forebay._loader.dataloader",
    "IterableDataset": "forebay._data.iterable",
    "Sampler": "forebay._loader.sampler",
    "WorkerError": "forebay._workers.pool",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name in _TORCH_MODULES:
        return getattr(import_module(_TORCH_MODULES[name]), name)
    raise AttributeError(f"module 'forebay' has no attribute {name!r}")
