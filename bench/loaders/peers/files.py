"""Plain PyTorch on local files: a job that already has the data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

from loaders import forms
from loaders.items import Items
from loaders.origin import Origin
from loaders.peers import BATCH, Task


class Files(Dataset[bytes]):
    """One item per file."""

    def __init__(self, directory: Path) -> None:
        self.paths = sorted(os.fspath(path) for path in directory.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        with open(self.paths[index], "rb", buffering=0) as file:
            return file.read()


def prepare(items: Items, origin: Origin) -> None:
    del origin
    shutil.copytree(items.directory, _directory(items))
    for path in _directory(items).iterdir():
        # Pages are charged to the cgroup that reads them first: a job's, not this process's.
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def start(task: Task) -> None:
    del task


def loader(task: Task) -> Iterable[Any]:
    return DataLoader(
        Files(_directory(task.items)),
        shuffle=True,
        batch_size=BATCH,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
        collate_fn=forms.collate(task.form),
    )


def _directory(items: Items) -> Path:
    """Copies of the items. The pages of the originals are charged to the origin."""
    return items.scratch / f"{items.directory.name}-files"
