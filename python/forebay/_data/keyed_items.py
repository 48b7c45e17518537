"""From a key to an item that only the user's own code can read.

The user says what an item is called (its *key*), and reads it; forebay hashes it when it is first
seen, remembers that in a catalogue of the user's own, and keeps the bytes on the node. There is no
agent: whoever misses an item claims it on the node, reads it in its own process and hands it over,
while the others wait (promises 3 and 5). A key that nobody has seen has no address yet; it is
claimed by a name that is made of the key, so that even the first epoch of several jobs reads each
item once.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from forebay._digests import cache_directory
from forebay._native import Catalogue, Digest, ForebayError, Picks, namespace_id
from forebay._node import ensure_node
from forebay._packing import hashed, pack, unpack
from forebay._tally import Tally
from forebay._warnings import warn

#: Items that are claimed and read together, if the dataset reads several at once.
AT_ONCE = 256

#: Address, length, index and form.
_Seen = tuple[bytes, int, int, int]
#: Address, length and ordinal.
_Pick = tuple[bytes, int, int]

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


@dataclass
class Wanted:
    """An item that is to be had."""

    item: int
    key: bytes
    seen: _Seen | None
    #: What a key is claimed by that nobody has seen.
    unseen: _Pick

    @property
    def pick(self) -> _Pick:
        return self.unseen if self.seen is None else (*self.seen[:2], self.item)


class Items:
    """The items of a dataset, by their keys: from the node, or read and handed over."""

    def __init__(
        self,
        dataset: Any,
        key: Callable[[int], Any] | None,
        name: str,
        node: Path | str | None,
        namespace_key: Path | None,
        job: str,
        *,
        start_node: bool,
    ) -> None:
        self.dataset, self.key, self.name = dataset, key, name
        self.node, self.namespace_key, self.job = node, namespace_key, job
        #: Whether a node that is not there is to be started.
        self.start_node = start_node
        self.tally = Tally(COUNTS)
        self.catalogue_path = _place(name, namespace_key)
        self._open()

    def _open(self) -> None:
        """What every process has of its own."""
        self.digest: Digest | None = None
        self._local = threading.local()
        self._has_warned = False
        try:
            self.catalogue = Catalogue(self.catalogue_path, self.namespace_key)
        except ForebayError as problem:
            if shutil.disk_usage(self.catalogue_path.parent).free > 0:
                raise
            # Without it nobody knows what to ask a node for.
            self.node = None
            self._warn(f"{problem}: there is no cache until there is room for it")

    def __getstate__(self) -> dict[str, Any]:
        own = {"catalogue", "digest", "_local", "_has_warned"}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def know(self, digest: Digest) -> None:
        """There is a digest of all items: from now on its manager's word counts for them."""
        self.digest = digest
        self._local = threading.local()

    @property
    def picks(self) -> Picks:
        """This thread's connections."""
        picks: Picks | None = getattr(self._local, "picks", None)
        if picks is None:
            assert self.node is not None
            picks = Picks(self.node, self.namespace_key, self.digest, self.job)
            self._local.picks = picks
        return picks

    def obtain_all(self, items: list[int]) -> list[Any]:
        """All of them; one that is asked for twice is two objects, as ever."""
        found: list[Any] = [None] * len(items)
        places = dict(enumerate(items))
        while places:
            first = {item: at for at, item in reversed(places.items())}
            for item, value in self.obtain(self.want(list(first))).items():
                found[first[item]] = value
                del places[first[item]]
        return found

    def hashed(self, item: int) -> bytes:
        return hashed(item if self.key is None else self.key(item))

    def want(self, items: Sequence[int]) -> list[Wanted]:
        """What is known of items."""
        keys = [self.hashed(item) for item in items]
        first: dict[bytes, int] = {}
        for item, key in zip(items, keys, strict=True):
            if first.setdefault(key, item) != item:
                raise self.alike(first[key], item)
        seen = [self.catalogue.find(key) for key in keys]
        if None in seen:
            # Another process may have seen them.
            with suppress(ForebayError):
                self.catalogue.refresh()
            seen = [self.catalogue.find(key) for key in keys]
        unseen = [self._unseen(key) for key in keys]
        wanted = [Wanted(*one) for one in zip(items, keys, seen, unseen, strict=True)]
        for one in wanted:
            self._check_moved(one)
        return wanted

    def _unseen(self, key: bytes) -> _Pick:
        return blake2b(key, key=self.catalogue.id, digest_size=32).digest(), 1, 0

    def _check_moved(self, one: Wanted) -> None:
        """An item was at another index when it was seen: it has moved, or two have one key."""
        if one.seen is None or one.seen[2] == one.item or one.seen[2] >= len(self.dataset):
            return
        before = one.seen[2]
        try:
            other = self.hashed(before)
        except Exception:
            return
        if other == one.key:
            raise self.alike(before, one.item)

    def alike(self, one: int, other: int) -> ValueError:
        key = one if self.key is None else self.key(one)
        return ValueError(
            f"items {one} and {other} have the same key {key!r}: put into the key what tells them"
            " apart"
        )

    def obtain(self, wanted: list[Wanted], *, learns: bool = False) -> dict[int, Any]:
        """From the node what it has; the rest from the dataset, what nobody else reads first.

        Who ``learns`` remembers what every item is, claimed or not.
        """
        found: dict[int, Any] = {}
        picks, wrong = self.picks, self.picks.wrong
        known = [one for one in wanted if one.seen is not None]
        for one, content in zip(known, picks.get([one.pick for one in known]), strict=True):
            self._accept(one, content, found)
        self.tally.add(items=len(wanted), hits=len(found))
        missing = [one for one in wanted if one.item not in found]
        together = AT_ONCE if hasattr(self.dataset, "__getitems__") else 1
        others: list[Wanted] = []
        for start in range(0, len(missing), together):
            pairs = self._claim(missing[start : start + together])
            own = [pair for pair in pairs if pair[1] != "others"]
            self._read_some(own, found, learns)
            others += [one for one, right in pairs if right == "others"]
        for one in others:
            self._wait_for(one, found, learns)
        self.tally.add(wrong=picks.wrong - wrong)
        if picks.node_fell() and self.start_node and isinstance(self.node, Path):
            ensure_node(self.node, self.namespace_key)
        return found

    def _accept(self, one: Wanted, content: bytes | None, found: dict[int, Any]) -> bool:
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

    def _claim(self, some: list[Wanted]) -> list[tuple[Wanted, str]]:
        """Who reads them: we, somebody else, or everyone for itself."""
        rights = self.picks.claim([one.pick for one in some])
        pairs = list(zip(some, rights, strict=True))
        told = self._told([one for one, right in pairs if right == "claim" and one.seen is None])
        return [(one, "others" if one.item in told else right) for one, right in pairs]

    def _told(self, claimed: list[Wanted]) -> set[int]:
        """Of those that nobody had seen, what others have seen until we were granted the claim."""
        if not claimed:
            return set()
        with suppress(ForebayError):
            self.catalogue.refresh()
        for one in claimed:
            one.seen = self.catalogue.find(one.key)
        told = [one for one in claimed if one.seen is not None]
        if told:
            self.picks.release([one.unseen for one in told])
        return {one.item for one in told}

    def _wait_for(self, one: Wanted, found: dict[int, Any], learns: bool) -> None:
        """Somebody else reads the item, or did a moment ago."""
        self._check_moved(one)
        settled = self.picks.settle(one.pick)
        if settled == "claim" and one.seen is None and self._told([one]):
            self._check_moved(one)
            settled = self.picks.settle(one.pick)
        if isinstance(settled, bytes):
            if self._accept(one, settled, found):
                self.tally.add(hits=1, waited=1)
                return
            settled = "alone"
        self._read_some([(one, settled)], found, learns)

    def _read_some(
        self, some: list[tuple[Wanted, str]], found: dict[int, Any], learns: bool
    ) -> None:
        """Read items, and hand over those that were claimed; give back what comes to nothing."""
        if not some:
            return
        claims = {one.item: one.pick for one, right in some if right == "claim"}
        try:
            values = self.read([one.item for one, _ in some])
            rights = [right for _, right in some]
            self.tally.add(
                read=len(some), outside=rights.count("outside"), fallbacks=rights.count("alone")
            )
            for (one, right), value in zip(some, values, strict=True):
                found[one.item] = value
                if right == "claim" or learns:
                    self._keep(one, value, claims)
        finally:
            if claims:
                self.picks.release(list(claims.values()))

    def read(self, items: list[int]) -> list[Any]:
        """From the dataset itself. What it raises is the user's."""
        if len(items) > 1 and hasattr(self.dataset, "__getitems__"):
            values = list(self.dataset.__getitems__(items))
            if len(values) != len(items):
                raise ValueError(
                    f"the dataset's __getitems__ gave {len(values)} of {len(items)} items"
                )
            return values
        return [self.dataset[item] for item in items]

    def _keep(self, one: Wanted, value: Any, claims: dict[int, _Pick]) -> None:
        """Hand an item over, and remember what it is if that is news."""
        picks = self.picks
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
        self.tally.add(**{"first_sights" if one.seen is None else "changed": 1})
        pick = (*seen[:2], one.item)
        # Before anybody is told of it. What a digest does not know has no place until the next.
        if self.digest is None and picks.claim([pick]) == ["claim"]:
            picks.put(pick, content)
        try:
            self.catalogue.append(one.key, seen)
        except ForebayError as problem:
            self._warn(f"items are not remembered: {problem}")

    def _warn(self, message: str) -> None:
        """Once in a process: it would be the same for all items."""
        if not self._has_warned:
            self._has_warned = True
            warn(f"forebay.wrap({self.name!r}): {message}")


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
    return directory / f"{plain(name)[:40]}-{hashlib.sha256(told).hexdigest()[:32]}.catalogue"


def plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)
