"""A map-style dataset over a digest: any loader that indexes can use it, PyTorch's first of all."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from forebay._job import new_job, present_job
from forebay._native import AgentGone, Digest, DigestError, Reader
from forebay._node import default_socket, endpoint

#: An agent that dies so often over one batch is not started again.
ATTEMPTS = 4

#: Items that are read at once when the whole dataset is.
AT_ONCE = 64

_Path = str | PathLike[str]
_T = TypeVar("_T")


class Dataset:
    """The items of a digest, read through this machine's cache.

    Parameters
    ----------
    digest_path
        A file that ``forebay digest build URL -o x.digest`` made.
    transform
        Called with each item; what it returns is the item. Runs in the loader's workers.
    columns
        Names of the digest's columns. With any, an item is ``(bytes, value, ...)``, else ``bytes``.
    cache
        ``"auto"`` uses this user's node and starts it if need be; a path is the socket of a node,
        ``"tls://host:port"`` a node of another machine (who the job is to it, the environment
        says: ``docs/security.md``); ``None`` reads the origin without one.
    storage_options
        How to reach the origin: ``endpoint``, ``access_key``, ``secret_key``, ``anonymous``,
        ``deadline_seconds``. By default, what the environment says.
    origin
        Read the data from this URL instead of where the digest says.
    namespace_key
        The key file of the digest's namespace, if it is private.
    job
        What the job is called in the node's log.
    """

    def __init__(
        self,
        digest_path: _Path,
        *,
        transform: Callable[[Any], Any] | None = None,
        columns: Sequence[str] = (),
        cache: _Path | None = "auto",
        storage_options: Mapping[str, object] | None = None,
        origin: str | None = None,
        namespace_key: _Path | None = None,
        job: str | None = None,
    ) -> None:
        if isinstance(columns, str):
            raise TypeError("`columns` is a list of names, such as columns=['label']")
        self._digest = _open(digest_path)
        self._columns = [_column(self._digest, name) for name in columns]
        self._transform = transform
        node = endpoint(default_socket() if cache == "auto" else cache)
        self._job = new_job(
            Path(digest_path),
            name=job,
            node=node,
            start_node=cache == "auto",
            origin=origin,
            namespace_key=None if namespace_key is None else Path(namespace_key),
            options=storage_options or {},
        )
        self._reader = self._job.reader(self._digest)
        self._workers_restarted = 0

    def __len__(self) -> int:
        return len(self._digest)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The items of a batch, in one request."""
        items = [self._ordinal(index) for index in indices]
        contents = self._with_agent(lambda reader: reader.get(items))
        if not self._columns:
            return [self._finish(content) for content in contents]
        return [
            self._finish((content, *(values[item] for values in self._columns)))
            for item, content in zip(items, contents, strict=True)
        ]

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), AT_ONCE):
            yield from self.__getitems__(range(start, min(start + AT_ONCE, len(self))))

    def __getstate__(self) -> dict[str, Any]:
        # Maps and connections are this process's own.
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in {"_digest", "_reader"}
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._digest = _open(self._job.digest)
        self._reader = self._job.reader(self._digest)

    def __repr__(self) -> str:
        return f"forebay.Dataset({str(self._job.digest)!r}, {len(self)} items)"

    @property
    def blob_bytes(self) -> int:
        """How long a blob is on average: an item, or a pack of them."""
        return self._digest.bytes // max(1, self._digest.blobs)

    def stats(self) -> dict[str, dict[str, int] | None]:
        """What the node (``None`` without one), this job's agent and its loaders have counted."""
        stats = self._with_agent(Reader.stats)
        return {**stats, "loader": {"workers_restarted": self._workers_restarted}}

    def count_worker_restart(self) -> None:
        """A loader has replaced its workers, because one of them died."""
        self._workers_restarted += 1

    def want(self, items: Sequence[int]) -> None:
        """Tell the agent which items will be asked for soon, in that order. Only ever a hint."""
        self._with_agent(lambda reader: reader.want(items))

    def _with_agent(self, ask: Callable[[Reader], _T]) -> _T:
        """Ask; if the agent is gone, or was never there, start it and ask again."""
        attempts = 1
        while True:
            try:
                answer = ask(self._reader)
                break
            except AgentGone:
                if attempts == ATTEMPTS:
                    raise
            attempts += 1
            self._job = present_job(self._job)
            self._job.ensure_agent()
            # A new reader tries a node that has just been started at once.
            self._reader = self._job.reader(self._digest)
        if self._reader.node_fell():
            self._job.revive_node()
        return answer

    def _ordinal(self, index: int) -> int:
        """An item's ordinal, by the rules of a list's indices."""
        item = operator.index(index)
        length = len(self)
        if not -length <= item < length:
            raise IndexError(f"item {item} of {length}")
        return item % length

    def _finish(self, item: Any) -> Any:
        return item if self._transform is None else self._transform(item)


def _open(path: _Path) -> Digest:
    url = str(path) if "://" in str(path) else "URL"
    hint = f"a digest is made with `forebay digest build {url} -o x.digest`"
    if not Path(path).is_file():
        raise DigestError(f"there is no file `{path}`; {hint}")
    try:
        return Digest(path)
    except DigestError as problem:
        raise DigestError(f"{problem}; {hint}") from None


def _column(digest: Digest, name: str) -> Sequence[Any]:
    """A column's values; numbers lie in an array, which forked workers share."""
    if name not in digest.columns:
        there_are = ", ".join(digest.columns) or "none"
        raise KeyError(f"the digest has no column `{name}`; there are {there_are}")
    values = digest.column(name)
    if any(value is None or isinstance(value, str) for value in values):
        return values
    return _Numbers(np.asarray(values))


class _Numbers(Sequence[Any]):
    """An array whose elements are Python's own numbers."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        return self._array.item(index)
