"""The loaders that are compared. Each has one module here, with the same functions:

``prepare(items, origin)``
    Writes the items into the origin's bucket in the loader's own format.
``start(task)``
    Starts what must run before a job, such as a daemon. Not timed; called for the first job only.
``loader(task)``
    The loader as its documentation recommends it: an iterable that yields an epoch of batches each
    time it is iterated.

A module is imported in its own environment, so no other module imports its loader.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from loaders.items import Items
from loaders.origin import Origin

BATCH = 64
#: Number of shards, for loaders with shards. Their default sizes (64 MB or 1 GB) suit hundreds of
#: gigabytes. A dataset of half a gigabyte would have too few shards for a limited cache.
SHARDS = 50
#: Fraction of the dataset in a shuffle window, for loaders that have one. MosaicML Streaming's
#: default is this fraction of ImageNet.
WINDOW_SHARE = 0.2
#: Largest fraction of a limited cache in a shuffle window. A window as large as the cache would
#: fetch every shard many times.
WINDOW_SHARE_OF_CACHE = 0.25


@dataclass(frozen=True)
class Task:
    """What a job reads, and how."""

    origin: Origin
    items: Items
    #: ``bytes``, ``views``, ``tensors`` or ``decoded``.
    form: str
    workers: int
    #: Directory of the loader's cache; one for all jobs if the loader shares it.
    cache: Path
    #: Limit of the cache in bytes, if any.
    cache_limit: int | None
    #: Where the page cache is capped: bytes for a loader that has a memory cache of its own.
    memory_limit: int | None
    #: Number of this job.
    job: int

    @property
    def window(self) -> int:
        """Samples in a shuffle window."""
        share = WINDOW_SHARE
        if self.cache_limit is not None:
            share = min(share, self.cache_limit / self.items.size * WINDOW_SHARE_OF_CACHE)
        return int(self.items.count * share)


def shard_size(items: Items) -> int:
    """Size of a shard in bytes."""
    return items.size // SHARDS


class Module(Protocol):
    """The interface of each module here."""

    def prepare(self, items: Items, origin: Origin) -> None: ...
    def start(self, task: Task) -> None: ...
    def loader(self, task: Task) -> Iterable[Any]: ...


@dataclass(frozen=True)
class Peer:
    """A loader in the comparison."""

    #: Its own name.
    name: str
    #: Its module here.
    file: str
    #: Its requirements on top of the shared ones: a file in ``requirements/``.
    requirements: str | None = None
    #: Whether several jobs share one cache. Otherwise each job has a cache of full size.
    shares: bool = False
    #: Seconds after which an epoch is stopped, for loaders that would take minutes.
    time_limit: float | None = None

    def module(self) -> Module:
        return cast(Module, importlib.import_module(f"loaders.peers.{self.file}"))


OURS = Peer("forebay", "ours", shares=True)
FILES = Peer("local files", "files", shares=True)
BOTO3 = Peer("boto3", "boto", time_limit=3.0)
STREAMING = Peer("MosaicML Streaming", "mosaic", "mosaicml-streaming")
LITDATA = Peer("litData", "lit", "litdata")
WEBDATASET = Peer("WebDataset", "web", "webdataset")
CONNECTOR = Peer("s3torchconnector", "connector", "s3torchconnector")

#: The peers that the design's targets name.
RIVALS = (LITDATA, STREAMING, WEBDATASET, CONNECTOR)
ALL = (OURS, *RIVALS, BOTO3, FILES)
