"""s3torchconnector: tar archives, streamed by the AWS common runtime, without a cache.

Its map-style dataset makes one request at a time in every worker, so single items would wait for
the origin's latency. Its documentation streams archives where items are small.
"""

from __future__ import annotations

import random
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

from s3torchconnector import S3ClientConfig, S3IterableDataset, S3Reader, S3ReaderConstructor
from torch.utils.data import DataLoader, IterableDataset

from loaders import forms, tar
from loaders.items import Items
from loaders.origin import BUCKET, Origin
from loaders.peers import BATCH, Task


class Archives(IterableDataset[bytes]):
    """All items of all archives, archives in a random order."""

    def __init__(self, task: Task) -> None:
        self.endpoint = task.origin.endpoint
        self.uris = [f"s3://{BUCKET}/{key}" for key in tar.keys(task.items)]
        self.epoch = 0

    def __iter__(self) -> Iterator[bytes]:
        self.epoch += 1
        archives = S3IterableDataset.from_objects(
            random.Random(self.epoch).sample(self.uris, len(self.uris)),
            region="us-east-1",
            endpoint=self.endpoint,
            enable_sharding=True,
            transform=_members,
            s3client_config=S3ClientConfig(force_path_style=True),
            reader_constructor=S3ReaderConstructor.sequential(),
        )
        for members in archives:
            yield from members


def prepare(items: Items, origin: Origin) -> None:
    del origin
    tar.write(items)


def start(task: Task) -> None:
    del task


def loader(task: Task) -> Iterable[Any]:
    return DataLoader(
        Archives(task),
        batch_size=BATCH,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
        collate_fn=forms.collate(task.form),
    )


def _members(reader: S3Reader) -> Iterator[bytes]:
    with tarfile.open(fileobj=reader, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            yield content.read()
