"""Items by key: what is read from the cache, or from the user's own code (``forebay.wrap``).

``learning`` uses them for datasets whose addresses are not known yet.

The user names each item by a *key* and can read it. forebay hashes an item when it is first read,
records the hash in a catalogue of the user, and stores the bytes on the node. There is no agent: a
process that misses an item claims it on the node, reads it itself and puts it, while the others
wait (promises 3 and 5). A key without a catalogue entry has no address yet. It is claimed by a
hash of the key, so that even the first epoch of several jobs reads each item once.
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
from typing import Any, Literal

from forebay._data.auto_digest import cache_directory
from forebay._data.serialization import hash_key, pack, unpack
from forebay._native import BlobsByAddress, Catalogue, Digest, ForebayError, namespace_id
from forebay._runtime.node import ensure_node
from forebay._runtime.shared_counters import SharedCounters
from forebay._runtime.warnings import warn

#: Items per call of the dataset's ``__getitems__``.
ITEMS_PER_CALL = 256

#: Catalogue entry: address, length, index and form.
_Entry = tuple[bytes, int, int, int]
#: Argument of the native module: address, length and ordinal.
_Blob = tuple[bytes, int, int]

#: Counters of ``stats()``.
COUNTERS = (
    "items",
    "hits",
    "read",
    "first_reads",
    "changed",
    "waited",
    "uncached",
    "fallbacks",
    "wrong",
    "verified",
)


@dataclass
class Request:
    """A requested item."""

    item: int
    key: bytes
    #: The catalogue entry, once the item was read.
    entry: _Entry | None
    #: Stand-in for the blob in claims, while the item has no entry.
    placeholder: _Blob

    @property
    def blob(self) -> _Blob:
        return self.placeholder if self.entry is None else (*self.entry[:2], self.item)


class KeyedItems:
    """The items of a dataset, by their keys: from the node, or read and put there."""

    #: Whether items that were read without a claim get a catalogue entry, too.
    records_all = False

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
        verify: int,
        catalogue: str | None = None,
    ) -> None:
        self.dataset, self.key, self.name = dataset, key, name
        self.node, self.namespace_key, self.job = node, namespace_key, job
        #: Whether to start a node that is not running.
        self.start_node = start_node
        self.counters = SharedCounters(COUNTERS)
        self.catalogue_path = _catalogue_path(catalogue or name, namespace_key)
        #: Hits that each process compares with the dataset. What this job records itself needs no
        #: comparison.
        self._verify = verify if self.catalogue_path.exists() else 0
        self._init_process_local()

    def _init_process_local(self) -> None:
        """Attributes that each process has of its own."""
        self._unverified = self._verify
        self.digest: Digest | None = None
        self._local = threading.local()
        self._has_warned = False
        try:
            self.catalogue = Catalogue(self.catalogue_path, self.namespace_key)
        except ForebayError as problem:
            if shutil.disk_usage(self.catalogue_path.parent).free > 0:
                raise
            # Without a catalogue no address is known, so the node cannot be asked.
            self.node = None
            self._warn(f"{problem}: items are not cached until there is space")

    def __getstate__(self) -> dict[str, Any]:
        own = {"catalogue", "digest", "_local", "_has_warned", "_unverified"}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._init_process_local()

    def use_digest(self, digest: Digest) -> None:
        """Name items by a digest of all of them: the node's manager then decides what is kept."""
        self.digest = digest
        self._local = threading.local()

    @property
    def label(self) -> str:
        """The dataset in warnings."""
        return f"forebay.wrap({self.name!r})"

    @property
    def blobs(self) -> BlobsByAddress:
        """This thread's connections."""
        blobs: BlobsByAddress | None = getattr(self._local, "blobs", None)
        if blobs is None:
            assert self.node is not None
            blobs = BlobsByAddress(self.node, self.namespace_key, self.digest, self.job)
            self._local.blobs = blobs
        return blobs

    def obtain_all(self, items: list[int]) -> list[Any]:
        """The items, in this order; an item that is requested twice is two objects."""
        found: list[Any] = [None] * len(items)
        positions = dict(enumerate(items))
        while positions:
            first = {item: at for at, item in reversed(positions.items())}
            for item, value in self.obtain(self.requests(list(first))).items():
                found[first[item]] = value
                del positions[first[item]]
        return found

    def hash_of(self, item: int) -> bytes:
        """The hash of an item's key."""
        return hash_key(item if self.key is None else self.key(item))

    def requests(self, items: Sequence[int]) -> list[Request]:
        """Requests for items, with their catalogue entries.

        Raises
        ------
        ValueError
            Two items have the same key.
        """
        keys = [self.hash_of(item) for item in items]
        first: dict[bytes, int] = {}
        for item, key in zip(items, keys, strict=True):
            if first.setdefault(key, item) != item:
                raise self.same_key_error(first[key], item)
        entries = [self.catalogue.find(key) for key in keys]
        if None in entries:
            # Another process may have read them.
            with suppress(ForebayError):
                self.catalogue.refresh()
            entries = [self.catalogue.find(key) for key in keys]
        placeholders = [self._placeholder(key) for key in keys]
        fields = zip(items, keys, entries, placeholders, strict=True)
        requests = [Request(*one) for one in fields]
        for request in requests:
            self._check_index(request)
        return requests

    def _placeholder(self, key: bytes) -> _Blob:
        return blake2b(key, key=self.catalogue.id, digest_size=32).digest(), 1, 0

    def _check_index(self, request: Request) -> None:
        """An entry with another index means that the item has moved, or that two share a key."""
        entry = request.entry
        if entry is None or entry[2] == request.item or entry[2] >= len(self.dataset):
            return
        before = entry[2]
        try:
            other = self.hash_of(before)
        except Exception:
            return
        if other == request.key:
            raise self.same_key_error(before, request.item)

    def same_key_error(self, one: int, other: int) -> ValueError:
        key = one if self.key is None else self.key(one)
        return ValueError(
            f"items {one} and {other} have the same key {key!r}; make `key` distinguish them"
        )

    def obtain(self, requests: list[Request], *, records_all: bool = False) -> dict[int, Any]:
        """Items from the node, and the rest from the dataset: first what no other process reads.

        With ``records_all``, items that were read without a claim get a catalogue entry as well.
        """
        found: dict[int, Any] = {}
        records_all = records_all or self.records_all
        blobs, wrong = self.blobs, self.blobs.wrong
        known = [request for request in requests if request.entry is not None]
        contents = blobs.get([request.blob for request in known])
        for request, content in zip(known, contents, strict=True):
            self._accept(request, content, found)
        self.counters.add(items=len(requests), hits=len(found))
        self._verify_some([request for request in known if request.item in found], found)
        missing = [request for request in requests if request.item not in found]
        per_call = ITEMS_PER_CALL if hasattr(self.dataset, "__getitems__") else 1
        claimed_by_others: list[Request] = []
        for start in range(0, len(missing), per_call):
            pairs = self._claim(missing[start : start + per_call])
            own = [pair for pair in pairs if pair[1] != "others"]
            self._read_and_put(own, found, records_all)
            claimed_by_others += [request for request, right in pairs if right == "others"]
        for request in claimed_by_others:
            self._wait_for(request, found, records_all)
        self.counters.add(wrong=blobs.wrong - wrong)
        if blobs.take_node_failure() and self.start_node and isinstance(self.node, Path):
            ensure_node(self.node, self.namespace_key)
        return found

    def _accept(self, request: Request, content: bytes | None, found: dict[int, Any]) -> bool:
        """Add the item to ``found``, if its bytes can be unpickled."""
        if content is None or request.entry is None:
            return False
        try:
            found[request.item] = unpack(request.entry[3], content)
        except Exception as problem:
            # The item's class may have changed.
            self._warn(f"item {request.item} cannot be unpickled and is read again: {problem!r}")
            return False
        return True

    def _verify_some(self, hits: list[Request], found: dict[int, Any]) -> None:
        """Compare some hits with the dataset: another one may use the same name and keys.

        One of every batch is compared, until the process has compared enough.
        """
        if self._unverified == 0 or not hits:
            return
        self._unverified -= 1
        item = hits[0].item
        self.counters.add(verified=1)
        difference = compare(found[item], lambda: self.read([item])[0])
        if difference == "random":
            self._warn(
                f"item {item} of the dataset differs from read to read, and the cache returns the"
                " first read in every epoch; put random work into `transform`"
            )
        elif difference == "other":
            key = item if self.key is None else self.key(item)
            raise ForebayError(
                f"the cache has another item for key {key!r} of {self.name!r} than the dataset's"
                f" item {item}: another dataset uses this name, or the content has changed; give"
                " name=... that no other dataset has, and keys that change with the content"
            )

    def _claim(self, requests: list[Request]) -> list[tuple[Request, str]]:
        """Claim items; the rights are ``claim``, ``others``, ``uncached`` or ``alone``."""
        rights = self.blobs.claim([request.blob for request in requests])
        pairs = list(zip(requests, rights, strict=True))
        claimed = [
            request for request, right in pairs if right == "claim" and request.entry is None
        ]
        read_meanwhile = self._release_known(claimed)
        return [
            (request, "others" if request.item in read_meanwhile else right)
            for request, right in pairs
        ]

    def _release_known(self, claimed: list[Request]) -> set[int]:
        """Release placeholders of items that another process has recorded before the claim.

        Returns these items.
        """
        if not claimed:
            return set()
        with suppress(ForebayError):
            self.catalogue.refresh()
        for request in claimed:
            request.entry = self.catalogue.find(request.key)
        known = [request for request in claimed if request.entry is not None]
        if known:
            self.blobs.release([request.placeholder for request in known])
        return {request.item for request in known}

    def _wait_for(self, request: Request, found: dict[int, Any], records_all: bool) -> None:
        """Wait for an item that another process reads, or has just read."""
        self._check_index(request)
        settled = self.blobs.settle(request.blob)
        if settled == "claim" and request.entry is None and self._release_known([request]):
            self._check_index(request)
            settled = self.blobs.settle(request.blob)
        if isinstance(settled, bytes):
            if self._accept(request, settled, found):
                self.counters.add(hits=1, waited=1)
                return
            settled = "alone"
        self._read_and_put([(request, settled)], found, records_all)

    def _read_and_put(
        self, pairs: list[tuple[Request, str]], found: dict[int, Any], records_all: bool
    ) -> None:
        """Read items from the dataset and put those that are claimed; release unused claims."""
        if not pairs:
            return
        claims = {request.item: request.blob for request, right in pairs if right == "claim"}
        try:
            values = self.read([request.item for request, _ in pairs])
            rights = [right for _, right in pairs]
            self.counters.add(
                read=len(pairs),
                uncached=rights.count("uncached"),
                fallbacks=rights.count("alone"),
            )
            for (request, right), value in zip(pairs, values, strict=True):
                found[request.item] = value
                if right == "claim" or records_all:
                    self._put(request, value, claims)
        finally:
            if claims:
                self.blobs.release(list(claims.values()))

    def read(self, items: list[int]) -> list[Any]:
        """Items from the dataset itself; its exceptions reach the user."""
        if len(items) > 1 and hasattr(self.dataset, "__getitems__"):
            values = list(self.dataset.__getitems__(items))
            if len(values) != len(items):
                raise ValueError(
                    f"the dataset's __getitems__ gave {len(values)} of {len(items)} items"
                )
            return values
        return [self.dataset[item] for item in items]

    def _put(self, request: Request, value: Any, claims: dict[int, _Blob]) -> None:
        """Put an item that was read; record it if it is new or has changed."""
        blobs = self.blobs
        try:
            form, content = pack(value)
        except Exception as problem:
            self._warn(f"item {request.item} cannot be pickled and is not cached: {problem!r}")
            return
        known, entry = request.entry, (blobs.address(content), len(content), request.item, form)
        if known is not None and (*known[:2], known[3]) == (*entry[:2], form):
            if request.item in claims:
                blobs.put(claims.pop(request.item), content)
            return
        self.counters.add(**{"first_reads" if known is None else "changed": 1})
        blob = (*entry[:2], request.item)
        # The put comes before the entry, so that no process asks for it too early. An item that the
        # digest does not have is not cached until the next digest.
        if self.digest is None and blobs.claim([blob]) == ["claim"]:
            blobs.put(blob, content)
        try:
            self.catalogue.append(request.key, entry)
        except ForebayError as problem:
            self._warn(f"items are not recorded: {problem}")

    def _warn(self, message: str) -> None:
        """Warn once per process: the next item would give the same message."""
        if not self._has_warned:
            self._has_warned = True
            warn(f"{self.label}: {message}")


def compare(cached: Any, read: Callable[[], Any]) -> Literal["same", "random", "other"]:
    """Compare a cached item with what the dataset returns, at two reads if they differ."""
    fresh = read()
    if _is_same(cached, fresh):
        return "same"
    return "other" if _is_same(fresh, read()) else "random"


def _is_same(one: Any, other: Any) -> bool:
    """Whether two items are equal: by their pickles in this process, or by comparison."""
    with suppress(Exception):
        if pack(one) == pack(other):
            return True
    with suppress(Exception):
        equal = one == other
        return bool(equal.all()) if hasattr(equal, "all") else bool(equal)
    return False


def _catalogue_path(name: str, namespace_key: Path | None) -> Path:
    """The catalogue of a dataset, in a directory that only this user can access."""
    directory = cache_directory() / "catalogues"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise ForebayError(
            f"cannot create `{directory}` for catalogues ({problem.strerror}); set XDG_CACHE_HOME"
        ) from None
    identity = f"{namespace_id(namespace_key)} {name}".encode(errors="surrogatepass")
    stem = f"{plain(name)[:40]}-{hashlib.sha256(identity).hexdigest()[:32]}"
    return directory / f"{stem}.catalogue"


def plain(name: str) -> str:
    """A name with only letters, digits and ``._-``."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)
