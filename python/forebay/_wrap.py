"""Any map-style dataset, cached: items that only the user's own code can read.

The user says what an item is called (its *key*), and reads it; forebay hashes it when it is first
seen, remembers that in a catalogue of the user's own, and keeps the bytes on the node. Nobody else
can read such items, so there is no agent: whoever misses one claims it on the node, reads it in its
own process and hands it over, while the others wait (promises 3 and 5). A key that nobody has seen
has no address yet; it is claimed by a name that is made of the key, so that even the first epoch of
several jobs reads each item once.
"""

from __future__ import annotations

import hashlib
import operator
import os
import re
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Any

from forebay._dataset import PastCache
from forebay._digests import cache_directory
from forebay._job import named
from forebay._native import (
    Catalogue,
    Digest,
    DigestError,
    ForebayError,
    Layout,
    Picks,
    Reader,
    namespace_id,
)
from forebay._node import default_socket, endpoint, ensure_node, warn_without
from forebay._packing import hashed, pack, unpack
from forebay._participation import Participation
from forebay._processes import answers
from forebay._tally import Tally

#: Items that are claimed and read together, if the dataset reads several at once.
AT_ONCE = 256
#: How often a progress bar is drawn, in seconds.
DRAWN_EVERY = 0.2
#: Where an agent would listen, if there were one.
_NO_AGENT = Path("/nonexistent")

_Path = str | PathLike[str]
#: Address, length, index and form.
_Seen = tuple[bytes, int, int, int]
#: Address, length and ordinal.
_Pick = tuple[bytes, int, int]


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


@dataclass
class _Wanted:
    """An item that is to be had."""

    item: int
    key: bytes
    seen: _Seen | None
    #: What a key is claimed by that nobody has seen.
    unseen: _Pick

    @property
    def pick(self) -> _Pick:
        return self.unseen if self.seen is None else (*self.seen[:2], self.item)


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
        self.dataset = dataset
        self._key, self._transform = key, transform
        kind = type(dataset)
        self.name = f"{kind.__module__}.{kind.__qualname__}" if name is None else name
        self._namespace_key = None if namespace_key is None else Path(namespace_key).absolute()
        self._node = endpoint(default_socket() if cache == "auto" else cache)
        self._job = named(job)
        self._tally = Tally(COUNTS)
        self._snapshot: Path | None = None
        self._has_started_node = False
        self._workers_restarted = 0
        self._catalogue_path = _place(self.name, self._namespace_key)
        self._open()
        if cache == "auto" and isinstance(self._node, Path):
            self._has_started_node = ensure_node(self._node, self._namespace_key)
        elif self._node is not None and not answers(self._node):
            warn_without(self._node, "nobody answers there")

    def _open(self) -> None:
        """What every process has of its own."""
        self._catalogue = Catalogue(self._catalogue_path, self._namespace_key)
        self._local = threading.local()
        self.participation = Participation()
        self._layout: Layout | None = None
        self._digest: Digest | None = None
        self._presence: Reader | None = None
        self._has_warned = False
        self._learns = False

    def __getstate__(self) -> dict[str, Any]:
        own = {
            "_catalogue",
            "_local",
            "participation",
            "_layout",
            "_digest",
            "_presence",
            "_has_warned",
            "_learns",
        }
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
        if self._snapshot is not None:
            # Somebody may have made another meanwhile; it is done without.
            with suppress(DigestError):
                self._digest = Digest(self._snapshot)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The items of a batch."""
        items = [self.ordinal(index) for index in indices]
        if self._node is None or any(isinstance(index, PastCache) for index in indices):
            self._tally.add(items=len(items), read=len(items))
            found = self._read(items)
        else:
            found = self._obtain_all(items)
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
        node = self._picks.stats() if self._node is not None else None
        loader = {"workers_restarted": self._workers_restarted}
        return {**self._tally.totals(), "node": node, "loader": loader}

    def learn(self) -> None:
        """Read all items that have never been seen, so that all are known.

        An epoch of any loader does the same. Shows a progress bar, if somebody watches.
        """
        if self._node is None:
            raise ForebayError("there is nothing to learn without a cache; give cache='auto'")
        bar = _Progress(self.name, len(self))
        self._learns = True
        try:
            for start in range(0, len(self), AT_ONCE):
                items = range(start, min(start + AT_ONCE, len(self)))
                wanted = self._want(items)
                self._obtain([one for one in wanted if one.seen is None])
                bar.show(items.stop)
        finally:
            self._learns = False
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

    def want(self, items: Sequence[int]) -> None:
        """Nobody fetches ahead but the loader's own workers."""

    def ask(self, indices: Sequence[int]) -> None:
        """Nor is the node asked ahead."""

    @property
    def blob_bytes(self) -> int:
        """How long an item is on average, as far as that is known."""
        return 0 if self._digest is None else self._digest.bytes // max(1, self._digest.blobs)

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
            self._presence = Reader(self._known(), self._node, _NO_AGENT, self._job)
        return self._presence

    def _known(self) -> Digest:
        """A digest of all items; from now on its manager's word counts for them."""
        if self._digest is not None:
            return self._digest
        keys = [self._hashed(item) for item in range(len(self))]
        if len(set(keys)) < len(keys):
            first: dict[bytes, int] = {}
            for item, key in enumerate(keys):
                if first.setdefault(key, item) != item:
                    raise self._alike(first[key], item)
        with suppress(ForebayError):
            self._catalogue.refresh()
        path = self._catalogue_path.with_suffix(f".{os.getpid()}.digest")
        unknown = self._catalogue.snapshot(keys, path, f"wrapped {_plain(self.name)}")
        if unknown > 0:
            raise ForebayError(
                f"{unknown} of {len(self)} items have never been seen, so nobody knows which are"
                " cached: call learn() on the wrapped dataset first, or give order='strict'"
            )
        self._digest = Digest(path)
        self._snapshot = _kept(path, self._catalogue_path.stem, self._digest)
        self._local = threading.local()
        where = (self._digest, self._node, _NO_AGENT, self._job)
        weakref.finalize(self, self.participation.end, *where)
        return self._digest

    # From a key to an item.

    @property
    def _picks(self) -> Picks:
        """This thread's connections."""
        picks: Picks | None = getattr(self._local, "picks", None)
        if picks is None:
            assert self._node is not None
            picks = Picks(self._node, self._namespace_key, self._digest, self._job)
            self._local.picks = picks
        return picks

    def _obtain_all(self, items: list[int]) -> list[Any]:
        """All of them; one that is asked for twice is two objects, as ever."""
        found: list[Any] = [None] * len(items)
        places = dict(enumerate(items))
        while places:
            first = {item: at for at, item in reversed(places.items())}
            for item, value in self._obtain(self._want(list(first))).items():
                found[first[item]] = value
                del places[first[item]]
        return found

    def _hashed(self, item: int) -> bytes:
        return hashed(item if self._key is None else self._key(item))

    def _want(self, items: Sequence[int]) -> list[_Wanted]:
        """What is known of items."""
        keys = [self._hashed(item) for item in items]
        seen = [self._catalogue.find(key) for key in keys]
        if None in seen:
            # Another process may have seen them.
            with suppress(ForebayError):
                self._catalogue.refresh()
            seen = [self._catalogue.find(key) for key in keys]
        for item, key, one in zip(items, keys, seen, strict=True):
            if one is not None and one[2] != item:
                self._check_moved(item, key, one[2])
        unseen = [self._unseen(key) for key in keys]
        return [_Wanted(*one) for one in zip(items, keys, seen, unseen, strict=True)]

    def _unseen(self, key: bytes) -> _Pick:
        return blake2b(key, key=self._catalogue.id, digest_size=32).digest(), 1, 0

    def _check_moved(self, item: int, key: bytes, before: int) -> None:
        """An item was at another index when it was seen: it has moved, or two have one key."""
        if before < len(self):
            try:
                other = self._hashed(before)
            except Exception:
                return
            if other == key:
                raise self._alike(before, item)

    def _alike(self, one: int, other: int) -> ValueError:
        key = one if self._key is None else self._key(one)
        return ValueError(
            f"items {one} and {other} have the same key {key!r}: put into the key what tells them"
            " apart"
        )

    def _obtain(self, wanted: list[_Wanted]) -> dict[int, Any]:
        """From the node what it has; the rest from the dataset, what nobody else reads first."""
        found: dict[int, Any] = {}
        picks, wrong = self._picks, self._picks.wrong
        known = [one for one in wanted if one.seen is not None]
        for one, content in zip(known, picks.get([one.pick for one in known]), strict=True):
            self._accept(one, content, found)
        self._tally.add(items=len(wanted), hits=len(found))
        missing = [one for one in wanted if one.item not in found]
        together = AT_ONCE if hasattr(self.dataset, "__getitems__") else 1
        others: list[_Wanted] = []
        for start in range(0, len(missing), together):
            pairs = self._claim(missing[start : start + together])
            self._read_some([pair for pair in pairs if pair[1] != "others"], found)
            others += [one for one, right in pairs if right == "others"]
        for one in others:
            self._wait_for(one, found)
        self._tally.add(wrong=picks.wrong - wrong)
        if picks.node_fell() and self._has_started_node and isinstance(self._node, Path):
            ensure_node(self._node, self._namespace_key)
        return found

    def _accept(self, one: _Wanted, content: bytes | None, found: dict[int, Any]) -> bool:
        """Take what the node gave, if it can be understood."""
        if content is None or one.seen is None:
            return False
        try:
            found[one.item] = unpack(one.seen[3], content)
        except Exception as problem:
            # The item's class may have changed since.
            self._warn(f"item {one.item} cannot be unpickled, and is read again: {problem!r}")
            return False
        return True

    def _claim(self, some: list[_Wanted]) -> list[tuple[_Wanted, str]]:
        """Who reads them: we, somebody else, or everyone for itself."""
        rights = self._picks.claim([one.pick for one in some])
        pairs = list(zip(some, rights, strict=True))
        told = self._told([one for one, right in pairs if right == "claim" and one.seen is None])
        return [(one, "others" if one.item in told else right) for one, right in pairs]

    def _told(self, claimed: list[_Wanted]) -> set[int]:
        """Of those that nobody had seen, what others have seen until we were granted the claim."""
        if not claimed:
            return set()
        with suppress(ForebayError):
            self._catalogue.refresh()
        for one in claimed:
            one.seen = self._catalogue.find(one.key)
        told = [one for one in claimed if one.seen is not None]
        if told:
            self._picks.release([one.unseen for one in told])
        return {one.item for one in told}

    def _wait_for(self, one: _Wanted, found: dict[int, Any]) -> None:
        """Somebody else reads the item, or did a moment ago."""
        settled = self._picks.settle(one.pick)
        if settled == "claim" and one.seen is None and self._told([one]):
            settled = self._picks.settle(one.pick)
        if isinstance(settled, bytes):
            if self._accept(one, settled, found):
                self._tally.add(hits=1, waited=1)
                return
            settled = "alone"
        self._read_some([(one, settled)], found)

    def _read_some(self, some: list[tuple[_Wanted, str]], found: dict[int, Any]) -> None:
        """Read items, and hand over those that were claimed; give back what comes to nothing."""
        if not some:
            return
        claims = {one.item: one.pick for one, right in some if right == "claim"}
        try:
            values = self._read([one.item for one, _ in some])
            rights = [right for _, right in some]
            self._tally.add(
                read=len(some), outside=rights.count("outside"), fallbacks=rights.count("alone")
            )
            for (one, right), value in zip(some, values, strict=True):
                found[one.item] = value
                if right == "claim" or self._learns:
                    self._keep(one, value, claims)
        finally:
            if claims:
                self._picks.release(list(claims.values()))

    def _read(self, items: list[int]) -> list[Any]:
        """From the dataset itself. What it raises is the user's."""
        if len(items) > 1 and hasattr(self.dataset, "__getitems__"):
            values = list(self.dataset.__getitems__(items))
            if len(values) != len(items):
                raise ValueError(
                    f"the dataset's __getitems__ gave {len(values)} of {len(items)} items"
                )
            return values
        return [self.dataset[item] for item in items]

    def _keep(self, one: _Wanted, value: Any, claims: dict[int, _Pick]) -> None:
        """Hand an item over, and remember what it is if that is news."""
        picks = self._picks
        try:
            form, content = pack(value)
        except Exception as problem:
            self._warn(f"item {one.item} cannot be pickled, and is not cached: {problem!r}")
            return
        seen = (picks.address(content), len(content), one.item, form)
        if one.seen is not None and (*one.seen[:2], one.seen[3]) == (*seen[:2], form):
            if one.item in claims:
                picks.put(claims.pop(one.item), content)
            return
        self._tally.add(**{"first_sights" if one.seen is None else "changed": 1})
        pick = (*seen[:2], one.item)
        # Before anybody is told of it. What a digest does not know has no place until the next.
        if self._digest is None and picks.claim([pick]) == ["claim"]:
            picks.put(pick, content)
        try:
            self._catalogue.append(one.key, seen)
        except ForebayError as problem:
            self._warn(f"items are not remembered: {problem}")

    def _warn(self, message: str) -> None:
        """Once in a process: it would be the same for all items."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"forebay.wrap({self.name!r}): {message}", RuntimeWarning, stacklevel=5)


#: What is counted.
COUNTS = (
    "items",
    "hits",
    "read",
    "first_sights",
    "changed",
    "waited",
    "outside",
    "fallbacks",
    "wrong",
)


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


def _place(name: str, namespace_key: Path | None) -> Path:
    """The catalogue of a dataset, where nobody else can write."""
    directory = cache_directory() / "catalogues"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise ForebayError(
            f"cannot make `{directory}` for catalogues ({problem.strerror}); set XDG_CACHE_HOME"
        ) from None
    told = f"{namespace_id(namespace_key)} {name}".encode(errors="surrogatepass")
    return directory / f"{_plain(name)[:40]}-{hashlib.sha256(told).hexdigest()[:32]}.catalogue"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def _kept(path: Path, stem: str, digest: Digest) -> Path:
    """Give a snapshot the name of its content, and remove what it replaces."""
    kept = path.with_name(f"{stem}.{digest.dataset[:16]}.digest")
    path.replace(kept)
    path.with_name(f"{path.name}.checked").unlink(missing_ok=True)
    for older in path.parent.glob(f"{stem}.{'[0-9a-f]' * 16}.digest*"):
        if not older.name.startswith(kept.name):
            older.unlink(missing_ok=True)
    return kept
