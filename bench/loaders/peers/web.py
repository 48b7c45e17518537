"""WebDataset: tar archives over HTTP, fetched by its own ``curl``, cached in a local directory.

It has no client for S3: its documentation reads through a command, or by URL. Presigned URLs are
cheapest, because no interpreter is started for every archive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import boto3
import webdataset

from loaders import forms, tar
from loaders.items import Items
from loaders.origin import BUCKET, Origin
from loaders.peers import BATCH, Task


def prepare(items: Items, origin: Origin) -> None:
    del origin
    tar.write(items)


def start(task: Task) -> None:
    del task


def loader(task: Task) -> Iterable[Any]:
    client = boto3.client("s3")
    urls = [
        client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": key})
        for key in tar.keys(task.items)
    ]
    dataset = webdataset.WebDataset(
        urls,
        shardshuffle=len(urls),
        cache_dir=str(task.cache),
        cache_size=task.cache_limit or -1,
    )
    for stage in dataset.pipeline:
        cleaner = getattr(stage, "cleaner", None)
        if cleaner is not None:
            # The default is 30 s, which is longer than these epochs.
            cleaner.interval = 0
    batches = (
        dataset.shuffle(task.window)
        .to_tuple("jpg")
        .map(_only)
        .batched(BATCH, collation_fn=forms.collate(task.form))
    )
    return webdataset.WebLoader(  # type: ignore[no-any-return]
        batches,
        batch_size=None,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
    )


def _only(sample: tuple[bytes]) -> bytes:
    return sample[0]
