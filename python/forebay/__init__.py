"""An informed storage cache for machine learning.

``Dataset`` reads the items of a digest through this machine's cache; ``wrap`` caches any other
map-style dataset. ``DataLoader`` is PyTorch's loader with an order that takes cached items first.
``forebay.embeddings`` has embedding tables larger than memory, ``forebay.stream`` data that is
spilled and read back. ``import forebay`` does not import PyTorch and starts no thread; the first
use of a name that is a class of PyTorch's imports it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING

from forebay._data.tar import tar_sample
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
from forebay._runtime.storage_options import StorageOptions

if TYPE_CHECKING:
    from forebay._data.dataset import Dataset as Dataset
    from forebay._data.iterable import IterableDataset as IterableDataset
    from forebay._data.mixture import Mixture as Mixture
    from forebay._data.wrap import wrap as wrap
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
    "StorageOptions",
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
#: Modules that import PyTorch if it is installed.
_DATA_MODULES = {
    "Dataset": "forebay._data.dataset",
    "Mixture": "forebay._data.mixture",
    "wrap": "forebay._data.wrap",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name in _DATA_MODULES:
        return getattr(import_module(_DATA_MODULES[name]), name)
    if name not in _TORCH_MODULES:
        raise AttributeError(f"module 'forebay' has no attribute {name!r}")
    try:
        module = import_module(_TORCH_MODULES[name])
    except ModuleNotFoundError as problem:
        if problem.name != "torch":
            raise
        raise ImportError(
            f"forebay.{name} needs PyTorch, which is not installed; install it with"
            " `pip install 'forebay[torch]'`"
        ) from None
    return getattr(module, name)
