"""An informed storage cache for machine learning.

``Dataset`` reads the items of a digest through this machine's cache; ``DataLoader`` is PyTorch's,
and draws what is cached first. ``forebay.torch`` has embedding tables larger than memory. ``import
forebay`` does not import torch.
"""

from __future__ import annotations

from importlib.metadata import version as _version
from typing import TYPE_CHECKING

from forebay._dataset import Dataset
from forebay._native import AgentGone, DigestError, ForebayError, ReadError, TableError
from forebay._tar import tar_sample

if TYPE_CHECKING:
    from forebay._loader import DataLoader as DataLoader

__version__ = _version("forebay")

__all__ = [
    "AgentGone",
    "DataLoader",
    "Dataset",
    "DigestError",
    "ForebayError",
    "ReadError",
    "TableError",
    "__version__",
    "tar_sample",
]


def __getattr__(name: str) -> object:
    if name == "DataLoader":
        from forebay._loader import DataLoader

        return DataLoader
    raise AttributeError(f"module 'forebay' has no attribute {name!r}")
