"""Tar archives of the items, for loaders that read archives."""

from __future__ import annotations

import io
import tarfile
from contextlib import ExitStack

from loaders.items import Items
from loaders.peers import shard_size


def write(items: Items) -> None:
    """Write archives of about a shard's size to the bucket, unless they exist."""
    directory = items.bucket / _prefix(items)
    if directory.exists():
        return
    directory.mkdir()
    with ExitStack() as last:
        archive: tarfile.TarFile | None = None
        for name, content in items.contents():
            if archive is None or archive.offset >= shard_size(items):
                last.close()
                number = sum(1 for _ in directory.iterdir())
                path = directory / f"{number:04}.tar"
                archive = last.enter_context(tarfile.open(path, "w"))
            entry = tarfile.TarInfo(f"{name}.jpg")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def keys(items: Items) -> list[str]:
    """Keys of all archives in the bucket."""
    archives = sorted((items.bucket / _prefix(items)).iterdir())
    return [f"{_prefix(items)}/{path.name}" for path in archives]


def _prefix(items: Items) -> str:
    return f"{items.directory.name}-tar"
