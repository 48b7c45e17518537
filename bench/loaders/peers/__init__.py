"""Who is compared. Each loader has one file here, and all files have the same functions:

``prepare(items, origin)``
    Writes the items into the origin's bucket in the loader's own format.
``start(task)``
    Starts what is there before a job is, such as a daemon; not timed, and called for the first job.
``loader(task)``
    The loader as its documentation recommends it: anything that gives an epoch of batches, again
    and again, each time it is iterated over.

A file is imported in an environment of its own, so only it imports what it compares.
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
#: How many shards a dataset has, for loaders that have shards. Their defaults (64 MB, or 1 GB) suit
#: hundreds of gigabytes: of half of one, a cache would have next to nothing to choose from.
SHARDS = 50
#: How much of the dataset is shuffled as one by loaders that shuffle by a window: a fifth, which is
#: what MosaicML Streaming's default is of ImageNet.
WINDOW_SHARE = 0.2
#: But no more than this of a cache that is limited: a window as large as the cache fetches every
#: shard many times over.
WINDOW_SHARE_OF_CACHE = 0.25


@dataclass(frozen=True)
class Task:
    """What a job is to read, and how."""

    origin: Origin
    items: Items
    #: ``bytes``, ``views``, ``tensors`` or ``decoded``.
    form: str
    workers: int
    #: A directory for whatever the loader keeps; all jobs' together, if it shares.
    cache: Path
    #: Bytes that may be kept there, if that is limited.
    cache_limit: int | None
    #: Where the page cache is capped: bytes that a loader with a memory of its own may use instead.
    memory_limit: int | None
    #: Which of several jobs this is.
    job: int

    @property
    def window(self) -> int:
        """Samples that are shuffled as one."""
        share = WINDOW_SHARE
        if self.cache_limit is not None:
            share = min(share, self.cache_limit / self.items.size * WINDOW_SHARE_OF_CACHE)
        return int(self.items.count * share)


def shard_size(items: Items) -> int:
    """Bytes in a shard."""
    return items.size // SHARDS


class Module(Protocol):
    """What each file here has."""

    def prepare(self, items: Items, origin: Origin) -> None: ...
    def start(self, task: Task) -> None: ...
    def loader(self, task: Task) -> Iterable[Any]: ...


@dataclass(frozen=True)
class Peer:
    """A loader, as the comparison knows it."""

    #: As it calls itself.
    name: str
    #: Its file here.
    file: str
    #: What its environment has on top of the shared one: a file in ``requirements/``.
    requirements: str | None = None
    #: Whether several jobs have one cache. Whoever does not gets a whole one for each of them.
    shares: bool = False
    #: Seconds after which an epoch is broken off, for those which would take minutes.
    patience: float | None = None

    def module(self) -> Module:
        return cast(Module, importlib.import_module(f"loaders.peers.{self.file}"))


OURS = Peer("forebay", "ours", shares=True)
FILES = Peer("local files", "files", shares=True)
BOTO3 = Peer("boto3", "boto", patience=3.0)
STREAMING = Peer("MosaicML Streaming", "mosaic", "mosaicml-streaming")
LITDATA = Peer("litData", "lit", "litdata")
WEBDATASET = Peer("WebDataset", "web", "webdataset")
CONNECTOR = Peer("s3torchconnector", "connector", "s3torchconnector")

#: Those which DESIGN's targets name.
RIVALS = (LITDATA, STREAMING, WEBDATASET, CONNECTOR)
ALL = (OURS, *RIVALS, BOTO3, FILES)
