"""litData: optimised chunks, prefetched by its own threads with obstore."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import boto3.s3.transfer  # noqa: F401 # litData imports it on first use, within a timed epoch
import litdata
import obstore.store  # noqa: F401 # likewise
from litdata.streaming import downloader

from loaders import forms
from loaders.items import Items
from loaders.origin import BUCKET, Origin
from loaders.peers import BATCH, Task, shard_size

# Its client rejects unencrypted endpoints, and has no option for them.
downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


class Collate:
    """Copies items in workers: an item is a view of a mapped chunk, which cannot be pickled."""

    def __init__(self, task: Task) -> None:
        self.form, self.copies = task.form, task.workers > 0 and task.form in forms.PLAIN

    def __call__(self, contents: Sequence[Any]) -> Any:
        if self.copies:
            contents = [bytes(content) for content in contents]
        return forms.collate(self.form)(contents)


def content_of(path: str) -> bytes:
    return Path(path).read_bytes()


def prepare(items: Items, origin: Origin) -> None:
    del origin
    litdata.optimize(
        fn=content_of,
        inputs=[str(path) for path in items.paths()],
        output_dir=str(items.bucket / _prefix(items)),
        chunk_bytes=shard_size(items),
        num_workers=1,
    )


def start(task: Task) -> None:
    del task


def loader(task: Task) -> Iterable[Any]:
    origin = task.origin
    dataset = litdata.StreamingDataset(
        f"s3://{BUCKET}/{_prefix(task.items)}",
        cache_dir=str(task.cache),
        max_cache_size=task.cache_limit,
        shuffle=True,
        storage_options={
            "endpoint_url": origin.endpoint,
            "aws_access_key_id": origin.access_key,
            "aws_secret_access_key": origin.secret_key,
        },
    )
    return litdata.StreamingDataLoader(  # type: ignore[no-any-return]
        dataset,
        batch_size=BATCH,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
        collate_fn=Collate(task),
    )


def _prefix(items: Items) -> str:
    return f"{items.directory.name}-litdata"
