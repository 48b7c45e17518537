"""Plain PyTorch over boto3: a map-style dataset with one request per item and no cache."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import boto3
from torch.utils.data import DataLoader, Dataset

from loaders import forms
from loaders.items import Items
from loaders.origin import BUCKET, Origin
from loaders.peers import BATCH, Task


class Objects(Dataset[bytes]):
    """Objects by key, with one client per process, as boto3 requires."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self._client: tuple[int, Any] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> bytes:
        if self._client is None or self._client[0] != os.getpid():
            self._client = (os.getpid(), boto3.client("s3"))
        answer = self._client[1].get_object(Bucket=BUCKET, Key=self.keys[index])
        content: bytes = answer["Body"].read()
        return content


def prepare(items: Items, origin: Origin) -> None:
    del items, origin  # reads plain objects


def start(task: Task) -> None:
    del task


def loader(task: Task) -> Iterable[Any]:
    prefix = task.items.directory.name
    objects = Objects([f"{prefix}/{path.name}" for path in task.items.paths()])
    return DataLoader(
        objects,
        shuffle=True,
        batch_size=BATCH,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
        collate_fn=forms.collate(task.form),
    )
