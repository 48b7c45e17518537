"""Any map-style dataset, cached: its face to users and to ``forebay.DataLoader``.

How its items come from the node, or from the user's own code, is in ``_keyed.py``.
"""

from __future__ import annotations

import operator
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from forebay._dataset import PastCache
from forebay._job import JobName
from forebay._keyed import AT_ONCE, Items, plain
from forebay._native import Digest, DigestError, ForebayError, Layout, Reader
from forebay._node import default_socket, endpoint, ensure_node, warn_without
from forebay._participation import Participation
from forebay._processes import answers
from forebay._ranks import ranks

#: How often a progress bar is drawn, in seconds.
DRAWN_EVERY = 0.2
#: Where an agent would listen, if there were one.
_NO_AGENT = Path("/nonexistent")

_Path = str | PathLike[str]


def wrap(
    dataset: Any,
    key: Callable[[int], Any] | None = None,
    *,
    name: str | None = None,
    cache: _Path | None = "auto",
    transform: Callable[[Any], Any] | None = None,
    namespace_key: _Path | None = None,
    job: str | None = None,
) -> Wrapped:
    """Cache the items of any map-style dataset.

    Parameters
    ----------
    dataset
        Has ``__len__`` and ``__getitem__``, and perhaps ``__getitems__``. Its items are cached as
        it gives them, so whatever is random about them belongs into ``transform``.
    key
        Called with an index, says what the item is: a str, bytes, int or float, or a tuple of them,
        such as a path and when it was modified, or a row and its version. The same key stands for
        the same content, in all epochs and jobs; no two items of the dataset have the same. By
        default the index, and then the dataset needs a ``name``.
    name
        What the dataset is called; keys of different names are different. By default the name of
        the dataset's class.
    cache
        As for :class:`forebay.Dataset`.
    transform
        Called with each item, cached or not; what it returns is the item.
    namespace_key
        The key file of a private namespace.
    job
        As for :class:`forebay.Dataset`.

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
    return Wrapped(dataset, key, name, cache, transform, namespace_key, job)


class Wrapped:
    """What :func:`forebay.wrap` returns: the same items, from the cache where it has them."""

    def __init__(
        self,
        dataset: Any,
        key: Callable[[int], Any] | None,
        name: str | None,
        cache: _Path | None,
        transform: Callable[[Any], Any] | None,
        namespace_key: _Path | None,
        job: str | None,
    ) -> None:
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise TypeError("forebay.wrap takes a map-style dataset: __len__ and __getitem__")
        if key is not None and not callable(key):
            raise TypeError("`key` is a function of an item's index: what it returns is the key")
        if key is None and name is None:
            raise ValueError(
                "give key=..., a function that says what an item is; or name=..., if its index does"
            )
        self.dataset, self._transform = dataset, transform
        kind = type(dataset)
        self.name = f"{kind.__module__}.{kind.__qualname__}" if name is None else name
        private = None if namespace_key is None else Path(namespace_key).absolute()
        node = endpoint(default_socket() if cache == "auto" else cache)
        self._called = JobName(job)
        called, starts = self._called.of(*ranks()), cache == "auto"
        self._items = Items(dataset, key, self.name, node, private, called, start_node=starts)
        node = self._node
        self._snapshot: Path | None = None
        self._workers_restarted = 0
        #: Items that loaders have given to their users.
        self.given = 0
        self._local()
        if starts and isinstance(node, Path):
            ensure_node(node, private)
        elif node is not None and not answers(node):
            warn_without(node, "nobody answers there")

    def _local(self) -> None:
        """What every process has of its own."""
        self.participation = Participation()
        self._layout: Layout | None = None
        self._presence: Reader | None = None

    def __getstate__(self) -> dict[str, Any]:
        own = {"participation", "_layout", "_presence"}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy takes part in rotations by itself.
        self._called = self._called.of_a_copy()
        self._local()
        if self._snapshot is not None:
            # Somebody may have made another meanwhile; it is done without.
            with suppress(DigestError):
                self._items.know(Digest(self._snapshot))

    @property
    def _node(self) -> Path | str | None:
        """Where the node is, if one is used."""
        return self._items.node

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The items of a batch."""
        items = [self.ordinal(index) for index in indices]
        if self._node is None or any(isinstance(index, PastCache) for index in indices):
            self._items.tally.add(items=len(items), read=len(items))
            found = self._items.read(items)
        else:
            found = self._items.obtain_all(items)
        return found if self._transform is None else [self._transform(item) for item in found]

    def __iter__(self) -> Iterator[Any]:
        for item in range(len(self)):
            yield self[item]

    def __repr__(self) -> str:
        return f"forebay.wrap({self.dataset!r}, name={self.name!r})"

    def ordinal(self, index: int) -> int:
        """An item's ordinal, by the rules of a list's indices."""
        item, length = operator.index(index), len(self)
        if not -length <= item < length:
            raise IndexError(f"item {item} of {length}")
        return item % length

    def stats(self) -> dict[str, Any]:
        """What all processes of this job have counted, and the node (``None`` without one).

        ``items`` were asked for: ``hits`` of them the node had, ``read`` were read from the
        dataset, and nothing else. ``waited``: another process was reading them. Of those that were
        read, ``first_sights`` had never been seen, ``changed`` were not what they had been under
        the same key, ``outside`` the node would not keep, and ``fallbacks`` were read without a
        claim, because the node was of no help. ``wrong``: what the node gave was not what was
        asked for, and was not used.
        """
        node = self._items.picks.stats() if self._node is not None else None
        loader = {"workers_restarted": self._workers_restarted}
        return {**self._items.tally.totals(), "node": node, "loader": loader}

    def learn(self) -> None:
        """Read all items that have never been seen, so that all are known.

        An epoch of any loader does the same. Shows a progress bar, if somebody watches.
        """
        if self._node is None:
            raise ForebayError("there is nothing to learn without a cache; give cache='auto'")
        bar = _Progress(self.name, len(self))
        try:
            for start in range(0, len(self), AT_ONCE):
                items = range(start, min(start + AT_ONCE, len(self)))
                unseen = [one for one in self._items.want(items) if one.seen is None]
                self._items.obtain(unseen, learns=True)
                bar.show(items.stop)
        finally:
            bar.end()

    # What follows is for forebay.DataLoader.

    @property
    def id(self) -> str:
        """What tells the dataset from others in a loader's state."""
        return f"wrapped {self.name} of {len(self)} items"

    @property
    def on_error(self) -> str:
        """What becomes of items that cannot be read: the dataset's exceptions are raised."""
        return "raise"

    @on_error.setter
    def on_error(self, what: str) -> None:
        if what != "raise":
            raise ValueError(
                f"on_error={what!r} is for forebay.Dataset; a wrapped dataset's errors are its own"
            )

    def skipped(self) -> dict[str, Any]:
        """Nothing ever is."""
        return {"count": 0, "items": []}

    def count_worker_restart(self) -> None:
        """A loader has replaced its workers, because one of them died."""
        self._workers_restarted += 1

    def join(self, rank: int, world: int) -> str:
        """Take part in the dataset's rotation, under a name that no other process has."""
        name = self._called.of(rank, world)
        if name != self._items.job:
            self._items.job, self._presence = name, None
        return name

    @property
    def has_node(self) -> bool:
        """Whether there is to be a node."""
        return self._node is not None

    def missed(self) -> int:
        """No agent is asked for anything."""
        return 0

    def want(self, items: Sequence[int]) -> None:
        """Nobody fetches ahead but the loader's own workers."""

    def ask(self, indices: Sequence[int]) -> None:
        """Nor is the node asked ahead."""

    def give_up(self, indices: Sequence[int]) -> None:
        """So there is nothing to give up."""

    @property
    def blob_bytes(self) -> int:
        """How long an item is on average, as far as that is known."""
        digest = self._items.digest
        return 0 if digest is None else digest.bytes // max(1, digest.blobs)

    @property
    def layout(self) -> Layout:
        """Which item is where; there is one when all items are known."""
        if self._layout is None:
            self._layout = Layout(self._known())
        return self._layout

    @property
    def _reader(self) -> Reader:
        """The way to what the node says of the dataset as a whole."""
        if self._presence is None:
            self._presence = Reader(self._known(), self._node, _NO_AGENT, self._items.job)
        return self._presence

    def _known(self) -> Digest:
        """A digest of all items; from now on its manager's word counts for them."""
        items = self._items
        if items.digest is not None:
            return items.digest
        if not hasattr(items, "catalogue"):
            raise ForebayError("nothing is remembered of the items; give order='strict'")
        keys = [items.hashed(item) for item in range(len(self))]
        if len(set(keys)) < len(keys):
            first: dict[bytes, int] = {}
            for item, key in enumerate(keys):
                if first.setdefault(key, item) != item:
                    raise items.alike(first[key], item)
        with suppress(ForebayError):
            items.catalogue.refresh()
        path = items.catalogue_path.with_suffix(f".{os.getpid()}.digest")
        unknown = items.catalogue.snapshot(keys, path, f"wrapped {plain(self.name)}")
        if unknown > 0:
            raise ForebayError(
                f"{unknown} of {len(self)} items have never been seen, so nobody knows which are"
                " cached: call learn() on the wrapped dataset first, or give order='strict'"
            )
        digest = Digest(path)
        self._snapshot = _kept(path, items.catalogue_path.stem, digest)
        items.know(digest)
        where = (digest, self._node, _NO_AGENT)
        weakref.finalize(self, self.participation.end, *where)
        return digest


class _Progress:
    """A bar on stderr, if somebody watches."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total = name, total
        self._is_watched = sys.stderr.isatty()
        self._next = 0.0

    def show(self, done: int) -> None:
        now = time.monotonic()
        if self._is_watched and (now >= self._next or done == self._total):
            self._next = now + DRAWN_EVERY
            filled = 30 * done // self._total
            bar = "#" * filled + "-" * (30 - filled)
            told = f"learning {self._name} [{bar}] {done} of {self._total} items"
            print(f"\r{told}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_watched and self._next > 0.0:
            print(file=sys.stderr)


def _kept(path: Path, stem: str, digest: Digest) -> Path:
    """Give a snapshot the name of its content, and remove what it replaces."""
    kept = path.with_name(f"{stem}.{digest.dataset[:16]}.digest")
    path.replace(kept)
    path.with_name(f"{path.name}.checked").unlink(missing_ok=True)
    for older in path.parent.glob(f"{stem}.{'[0-9a-f]' * 16}.digest*"):
        if not older.name.startswith(kept.name):
            older.unlink(missing_ok=True)
    return kept
