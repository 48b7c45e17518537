"""``forebay.wrap``: any map-style dataset, cached.

This is the dataset as users and ``forebay.DataLoader`` see it. ``keyed_items`` has the way of an
item from the node or from the user's own code.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, overload

from forebay._data.dataset import Dataset, ProbeIndex
from forebay._data.keyed_items import ITEMS_PER_CALL, KeyedItems, plain
from forebay._data.map_style import MapStyle, T_co, as_many, checked_index
from forebay._data.short_stats import ShortStats, wrapped_line
from forebay._native import Digest, DigestError, ForebayError, ItemMap, Reader
from forebay._runtime.incarnation import Incarnation
from forebay._runtime.job import JobName
from forebay._runtime.node import default_socket, endpoint, ensure_node, warn_without_node
from forebay._runtime.processes import answers
from forebay._runtime.ranks import ranks_if_known

#: Hits that a process compares with the dataset by default.
VERIFY = 8
#: Seconds between two updates of a progress bar.
PROGRESS_SECONDS = 0.2
#: The agent's socket for readers that have no agent.
_NO_AGENT = Path("/nonexistent")

_Path = str | PathLike[str]
_T = TypeVar("_T")
_T_item = TypeVar("_T_item", covariant=True)


class Indexable(Protocol[_T_item]):
    """A map-style dataset, of PyTorch's or not."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> _T_item: ...


@overload
def wrap(
    dataset: Indexable[_T],
    key: Callable[[int], Any] | None = None,
    *,
    name: str | None = None,
    cache: _Path | None = "auto",
    transform: None = None,
    namespace_key: _Path | None = None,
    job: str | None = None,
    verify: int = VERIFY,
) -> Wrapped[_T]: ...
@overload
def wrap(
    dataset: Any,
    key: Callable[[int], Any] | None = None,
    *,
    name: str | None = None,
    cache: _Path | None = "auto",
    transform: Callable[[Any], _T],
    namespace_key: _Path | None = None,
    job: str | None = None,
    verify: int = VERIFY,
) -> Wrapped[_T]: ...
@overload
def wrap(
    dataset: Any,
    key: Callable[[int], Any] | None = None,
    *,
    name: str | None = None,
    cache: _Path | None = "auto",
    transform: Callable[[Any], Any] | None = None,
    namespace_key: _Path | None = None,
    job: str | None = None,
    verify: int = VERIFY,
) -> Wrapped[Any]: ...
def wrap(
    dataset: Any,
    key: Callable[[int], Any] | None = None,
    *,
    name: str | None = None,
    cache: _Path | None = "auto",
    transform: Callable[[Any], Any] | None = None,
    namespace_key: _Path | None = None,
    job: str | None = None,
    verify: int = VERIFY,
) -> Wrapped[Any]:
    """Cache the items of any map-style dataset.

    Parameters
    ----------
    dataset
        An object with ``__len__`` and ``__getitem__``, and optionally ``__getitems__``. The cache
        stores what it returns, once for all epochs; put random work into ``transform``.
    key
        Called with an index; returns the item's key: a str, bytes, int or float, or a tuple of
        them, such as a path and its modification time, or a row and its version. The same key must
        stand for the same content, in all epochs and jobs. No two items may have the same key. The
        default is the index, and then ``name`` is required.
    name
        Name of the dataset. Keys of different names are unrelated; datasets with one name share
        their items by key. The default is the name of the dataset's class with its module. It is
        required for classes of the script itself or of a notebook, whose names are not unique.
    cache
        As for :class:`forebay.Dataset`.
    transform
        Called with each item, cached or not; its result is the item.
    namespace_key
        Key file of a private namespace.
    job
        As for :class:`forebay.Dataset`.
    verify
        Number of hits that each process compares with the dataset, if other jobs have cached items
        under this name. A difference is an error, so that no other dataset's items are returned.

    Returns
    -------
    Wrapped
        A map-style dataset of the same items.

    Examples
    --------
    >>> squares = [number * number for number in range(50)]
    >>> dataset = forebay.wrap(squares, name="squares")
    >>> dataset[7]
    49
    >>> dataset.__getitems__([7, 8])
    [49, 64]
    >>> dataset.stats()["hits"]
    1
    """
    return Wrapped(dataset, key, name, cache, transform, namespace_key, job, verify)


class Wrapped(MapStyle[T_co]):
    """The result of :func:`forebay.wrap`: the items of a dataset, from the cache where possible."""

    #: Errors of the wrapped dataset are always raised.
    _on_error = "raise"

    def __init__(
        self,
        dataset: Any,
        key: Callable[[int], Any] | None,
        name: str | None,
        cache: _Path | None,
        transform: Callable[[Any], Any] | None,
        namespace_key: _Path | None,
        job: str | None,
        verify: int,
    ) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise TypeError(
                f"forebay.wrap takes a map-style dataset, with __len__ and __getitem__, not a"
                f" {type(dataset).__name__}"
            )
        if key is not None and not callable(key):
            raise TypeError(f"key={key!r}; give a function of an item's index that returns its key")
        if key is None and name is None:
            raise ValueError(
                "give key=..., a function that identifies an item; or name=..., if its index does"
            )
        if verify < 0:
            raise ValueError(f"verify={verify}; give a number of items, or 0")
        self._dataset, self._transform = dataset, transform
        self._name = _class_name(dataset) if name is None else name
        key_file = None if namespace_key is None else Path(namespace_key).absolute()
        node = endpoint(default_socket() if cache == "auto" else cache)
        self._job_name = JobName(job)
        job_name, starts = self._job_name.of(*ranks_if_known()), cache == "auto"
        self._items = KeyedItems(
            dataset, key, self._name, node, key_file, job_name, start_node=starts, verify=verify
        )
        node = self._node
        self._snapshot: Path | None = None
        self._workers_restarted = 0
        #: Items that loaders have yielded.
        self._items_yielded = 0
        self._init_process_local()
        if starts and isinstance(node, Path):
            ensure_node(node, key_file)
        elif node is not None and not answers(node):
            warn_without_node(node, "it does not answer")

    def _init_process_local(self) -> None:
        """Attributes that each process has of its own."""
        self._incarnation = Incarnation()
        self._layout_made: ItemMap | None = None
        self._reader_made: Reader | None = None

    def __getstate__(self) -> dict[str, Any]:
        own = {"_incarnation", "_layout_made", "_reader_made"}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy takes part in rotation under a name of its own.
        self._job_name = self._job_name.of_copy()
        self._init_process_local()
        if self._snapshot is not None:
            # Another process may have replaced the snapshot; then the copy has none.
            with suppress(DigestError):
                self._items.use_digest(Digest(self._snapshot))

    @property
    def _node(self) -> Path | str | None:
        """The endpoint of the node, if one is used."""
        return self._items.node

    def __len__(self) -> int:
        return len(self._dataset)

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice | Iterable[int]) -> list[T_co]: ...
    def __getitem__(self, index: Any) -> Any:
        many = as_many(index, len(self))
        return self.__getitems__([index])[0] if many is None else self.__getitems__(many)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The items of a batch."""
        items = [self._index(index) for index in indices]
        if self._node is None or any(isinstance(index, ProbeIndex) for index in indices):
            self._items.counters.add(items=len(items), read=len(items))
            found = self._items.read(items)
        else:
            found = self._items.obtain_all(items)
        return found if self._transform is None else [self._transform(item) for item in found]

    def __iter__(self) -> Iterator[T_co]:
        for item in range(len(self)):
            yield self[item]

    def __repr__(self) -> str:
        return f"forebay.wrap({self._name!r}, {len(self)} items)"

    def stats(self) -> dict[str, Any]:
        """Counters of all processes of this job, and of the node.

        Returns
        -------
        dict
            ``items``
                Items requested: ``hits`` + ``read``.
            ``hits``
                Items that the node had.
            ``read``
                Items read from the dataset.
            ``waited``
                Of ``hits``: another process was reading them.
            ``first_reads``
                Of ``read``: items without a catalogue entry.
            ``changed``
                Of ``read``: items that differ from what their key stood for.
            ``uncached``
                Of ``read``: items that the node would not keep.
            ``fallbacks``
                Of ``read``: items read without a claim, because the node did not help.
            ``wrong``
                Answers of the node that did not match and were not used.
            ``verified``
                Of ``hits``: items that were read from the dataset, too, and compared.
            ``node``
                Counters of the node; ``None`` without one.
            ``loader``
                ``workers_restarted``: workers that were replaced.
        """
        node = self._items.blobs.stats() if self._node is not None else None
        loader = {"workers_restarted": self._workers_restarted}
        totals = {**self._items.counters.totals(), "node": node, "loader": loader}
        return ShortStats(totals, wrapped_line)

    def index(self) -> None:
        """Read all items that have no catalogue entry, so that ``order="substitute"`` works.

        An epoch of any loader does the same. On a terminal, a progress bar is shown.

        Raises
        ------
        ForebayError
            The dataset has no cache.
        """
        if self._node is None:
            raise ForebayError("index() needs a cache; give cache='auto'")
        progress = _ProgressBar(self._name, len(self))
        try:
            for start in range(0, len(self), ITEMS_PER_CALL):
                items = range(start, min(start + ITEMS_PER_CALL, len(self)))
                requests = self._items.requests(items)
                unread = [request for request in requests if request.entry is None]
                self._items.obtain(unread, records_all=True)
                progress.update(items.stop)
        finally:
            progress.end()

    # Below: for forebay's loaders.

    @property
    def _id(self) -> str:
        """Identity of the dataset in a loader's state."""
        return f"wrapped {self._name} of {len(self)} items"

    @property
    def _has_node(self) -> bool:
        """Whether a node is configured."""
        return self._node is not None

    @property
    def _blob_bytes(self) -> int:
        """Mean length of an item, or 0 while it is unknown."""
        digest = self._items.digest
        return 0 if digest is None else digest.bytes // max(1, digest.blobs)

    @property
    def _layout(self) -> ItemMap:
        """The half-chunk of each item; needs a catalogue entry for every item."""
        if self._layout_made is None:
            self._layout_made = ItemMap(self._complete_digest())
        return self._layout_made

    @property
    def _reader(self) -> Reader:
        """The reader for presence and reports of the whole dataset."""
        if self._reader_made is None:
            self._reader_made = Reader(
                self._complete_digest(), self._node, _NO_AGENT, self._items.job
            )
        return self._reader_made

    def _join(self, rank: int, world: int) -> str:
        """Take part in rotation as this rank; returns the name that nodes know it by."""
        name = self._job_name.of(rank, world)
        if name != self._items.job:
            self._items.job, self._reader_made = name, None
        return name

    def _settle(self) -> None:
        """Do nothing: the catalogue becomes a digest when one is needed."""

    def _missed(self) -> int:
        """Items requested from an agent: there is none."""
        return 0

    def _set_on_error(self, on_error: str) -> None:
        if on_error != "raise":
            raise ValueError(
                f"on_error={on_error!r} is for forebay.Dataset; handle errors of a wrapped dataset"
                " in its own code"
            )

    def _count_worker_restart(self) -> None:
        self._workers_restarted += 1

    def _prefetch_hint(self, items: Sequence[int]) -> None:
        """Do nothing: there is no agent to fetch ahead."""

    def _request(self, indices: Sequence[int]) -> None:
        """Do nothing: batches are not requested ahead."""

    def _cancel(self, indices: Sequence[int]) -> None:
        """Do nothing: there are no requests."""

    def _index(self, index: int) -> int:
        """An index from 0; negative ones count from the end."""
        return checked_index(index, len(self))

    def _complete_digest(self) -> Digest:
        """A digest of all items, from the catalogue.

        From then on the node's manager decides which items are kept.
        """
        items = self._items
        if items.digest is not None:
            return items.digest
        if not hasattr(items, "catalogue"):
            raise ForebayError("there is no catalogue of the items; give order='strict'")
        keys = [items.hash_of(item) for item in range(len(self))]
        if len(set(keys)) < len(keys):
            first: dict[bytes, int] = {}
            for item, key in enumerate(keys):
                if first.setdefault(key, item) != item:
                    raise items.same_key_error(first[key], item)
        with suppress(ForebayError):
            items.catalogue.refresh()
        path = items.catalogue_path.with_suffix(f".{os.getpid()}.digest")
        unread = items.catalogue.snapshot(keys, path, f"wrapped {plain(self._name)}")
        if unread > 0:
            raise ForebayError(
                f"{unread} of {len(self)} items have never been read, so it is not known which are"
                " cached; call index() on the wrapped dataset first, or give order='strict'"
            )
        digest = Digest(path)
        self._snapshot = _publish(path, items.catalogue_path.stem, digest)
        items.use_digest(digest)
        weakref.finalize(self, self._incarnation.leave, digest, self._node, _NO_AGENT)
        return digest


def _class_name(dataset: Any) -> str:
    """The default name of a dataset: that of its class, if no other program can have it."""
    kind = type(dataset)
    if kind.__module__ in ("__main__", "builtins"):
        raise ValueError(
            f"the class {kind.__qualname__} of {kind.__module__} may be another one in another"
            " program; give name=..., which identifies this dataset"
        )
    return f"{kind.__module__}.{kind.__qualname__}"


#: Datasets that a loader reads directly; a ``Mixture`` consists of them.
Source: TypeAlias = "Dataset[Any] | Wrapped[Any]"
#: The same for ``isinstance``.
SOURCES = (Dataset, Wrapped)


class _ProgressBar:
    """A progress bar on stderr, if that is a terminal."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, total
        self._is_terminal = sys.stderr.isatty()
        self._next_update = 0.0

    def update(self, done: int) -> None:
        now = time.monotonic()
        if self._is_terminal and (now >= self._next_update or done == self._total):
            self._next_update = now + PROGRESS_SECONDS
            filled = 30 * done // self._total
            bar = "#" * filled + "-" * (30 - filled)
            text = f"indexing {self._name} [{bar}] {done} of {self._total} items"
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_terminal and self._next_update > 0.0:
            print(file=sys.stderr)


def _publish(path: Path, stem: str, digest: Digest) -> Path:
    """Name a snapshot by its content, and remove the snapshots that it replaces."""
    published = path.with_name(f"{stem}.{digest.dataset[:16]}.digest")
    path.replace(published)
    path.with_name(f"{path.name}.checked").unlink(missing_ok=True)
    for older in path.parent.glob(f"{stem}.{'[0-9a-f]' * 16}.digest*"):
        if not older.name.startswith(published.name):
            older.unlink(missing_ok=True)
    return published
