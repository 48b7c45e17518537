"""MosaicML Streaming: uncompressed MDS shards (JPEGs are compressed), cached in a directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import boto3.s3.transfer  # noqa: F401 # Streaming imports it on first use, within a timed epoch
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from loaders import forms
from loaders.items import Items
from loaders.origin import BUCKET, Origin
from loaders.peers import BATCH, Task, shard_size


class Collate:
    """Takes the one column of each sample, which is a dictionary."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __call__(self, samples: Sequence[dict[str, bytes]]) -> Any:
        return forms.collate(self.form)([sample["jpg"] for sample in samples])


def prepare(items: Items, origin: Origin) -> None:
    del origin
    out = str(items.bucket / _prefix(items))
    with MDSWriter(out=out, columns={"jpg": "bytes"}, size_limit=shard_size(items)) as writer:
        for _, content in items.contents():
            writer.write({"jpg": content})


def start(task: Task) -> None:
    del task


def loader(task: Task) -> Iterable[Any]:
    dataset = StreamingDataset(
        remote=f"s3://{BUCKET}/{_prefix(task.items)}",
        local=str(task.cache / "local"),
        cache_limit=task.cache_limit,
        batch_size=BATCH,
        shuffle=True,
        shuffle_block_size=task.window,
    )
    return StreamingDataLoader(  # type: ignore[no-any-return]
        dataset,
        batch_size=BATCH,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
        collate_fn=Collate(task.form),
    )


def _prefix(items: Items) -> str:
    return f"{items.directory.name}-mds"
