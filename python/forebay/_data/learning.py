"""Learning: a dataset whose objects were listed, and whose addresses are not known yet.

A URL that is read for the first time has a *listing* instead of a digest. Processes of the job read
its items as ``keyed_items`` does for wrapped datasets: the key of an item is that of its object in
the listing, a keyed hash of the URL, name, version and length, and the job's agent reads objects
that no process has read. The first epoch so records all addresses, and the last process of it
writes the digest. The loader then continues with that at its next epoch (``Dataset._settle``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forebay._data.keyed_items import ITEMS_PER_CALL, KeyedItems
from forebay._native import AgentGone, Digest, DigestError, ForebayError, Reader
from forebay._runtime.job import Job, new_job, present_job
from forebay._runtime.node import ensure_node, warn_without_node
from forebay._runtime.processes import answers, locked
from forebay._runtime.warnings import warn

#: Attempts at one read before a dying agent is not started again.
ATTEMPTS = 4
#: Objects that are read before an epoch if they are all that is missing. That takes a second or
#: two. They are at most this share of the dataset, too.
REST_ITEMS_MAX = 1000
REST_SHARE_MAX = 0.05
#: Longest wait for another process that writes the digest.
LOCK_SECONDS = 10.0


class ListedObjects:
    """The objects of a listing, read from the origin by an agent that uses no node."""

    def __init__(self, job: Job, name: str) -> None:
        self._job, self._name = job, name
        self._open()

    def _open(self) -> None:
        self.listing = Digest(self._job.digest, True)
        self._reader = self._job.reader(self.listing, self._name)

    def __getstate__(self) -> dict[str, Any]:
        return {"_job": self._job, "_name": self._name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @property
    def reader(self) -> Reader:
        """The reader of the agent; it knows no node."""
        return self._reader

    def __len__(self) -> int:
        return len(self.listing)

    def __getitem__(self, item: int) -> bytes:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[bytes]:
        for _ in range(ATTEMPTS - 1):
            with suppress(AgentGone):
                return self._reader.get(items)
            self.ensure_agent()
        return self._reader.get(items)

    def ensure_agent(self) -> None:
        """Start the agent unless it answers."""
        self._job = present_job(self._job)
        self._job.ensure_agent()
        self._reader = self._job.reader(self.listing, self._name, self._reader)


class ListedItems(KeyedItems):
    """The items of a listing by the keys of their objects."""

    dataset: ListedObjects
    #: Without a node, addresses are learned all the same.
    records_all = True

    @property
    def label(self) -> str:
        return f"forebay.Dataset({self.name!r})"

    def hash_of(self, item: int) -> bytes:
        return self.dataset.listing.listing_key(item)

    def _placeholder(self, key: bytes) -> tuple[bytes, int, int]:
        return key, 1, 0


class Learning:
    """What a dataset reads while it learns its addresses, and the digest that it becomes."""

    def __init__(
        self,
        url: str,
        listing: Path,
        digest: Path,
        *,
        identity: str,
        node: Path | str,
        start_node: bool,
        namespace_key: Path | None,
        job_name: str,
        options: Mapping[str, object],
    ) -> None:
        self._digest, self.identity = digest, identity
        self._namespace_key = namespace_key and namespace_key.absolute()
        job = new_job(
            listing,
            name=job_name,
            node=None,
            start_node=False,
            origin=None,
            namespace_key=namespace_key,
            verify="never",
            options=options,
        )
        self.items = ListedItems(
            ListedObjects(job, job_name),
            None,
            url,
            node,
            self._namespace_key,
            job_name,
            start_node=start_node,
            verify=0,
            catalogue=f"listed {digest.stem}",
        )
        #: Entries of the catalogue from which on the digest may be complete.
        self._complete_from = len(self.listing)
        if start_node and isinstance(node, Path):
            ensure_node(node, namespace_key)
        elif not answers(node):
            warn_without_node(node, "it does not answer")
        if self.items.node is not None and digest.is_file():
            with suppress(ForebayError):
                # Objects that have not changed since an earlier digest are known.
                self.items.catalogue.adopt(Digest(digest))

    @property
    def listing(self) -> Digest:
        return self.items.dataset.listing

    @property
    def reader(self) -> Reader:
        """A reader that knows no node, for samplers."""
        return self.items.dataset.reader

    def join(self, name: str) -> None:
        """Claim items under this name of the job."""
        self.items.job = name

    def read(self, items: list[int]) -> list[bytes]:
        """Items from the node, or from the origin; then they are known."""
        if self.items.node is None:  # there is no catalogue
            return self.items.read(items)
        found: list[bytes] = self.items.obtain_all(items)
        if self.items.digest is None and self.complete():
            with suppress(DigestError):
                self.items.use_digest(Digest(self._digest))
        return found

    def read_past_the_cache(self, items: list[int]) -> list[bytes]:
        """Items from the origin."""
        self.items.counters.add(items=len(items), read=len(items))
        found: list[bytes] = self.items.read(items)
        return found

    def stats(self) -> dict[str, dict[str, int] | None]:
        """Counters of the node and of the agent."""
        objects = self.items.dataset
        stats: dict[str, dict[str, int] | None] = {"node": None, "agent": None}
        for _ in range(ATTEMPTS - 1):
            with suppress(AgentGone):
                stats = dict(objects.reader.stats())
                break
            objects.ensure_agent()
        node = self.items.blobs.stats() if self.items.node is not None else None
        return {**stats, "node": node}

    def complete(self) -> bool:
        """Write the digest if all addresses are known; returns whether it is there."""
        if self.items.node is None:
            return False
        catalogue = self.items.catalogue
        with suppress(ForebayError):
            catalogue.refresh()
        if len(catalogue) < self._complete_from:
            return False
        try:
            with locked(self._digest.with_suffix(".complete.lock"), LOCK_SECONDS):
                if is_of_listing(self._digest, self.identity, self._namespace_key):
                    return True
                unknown = catalogue.complete(self.listing, self._digest)
        except (ForebayError, OSError) as problem:
            warn(f"the digest of `{self.items.name}` cannot be written: {problem}")
            self._complete_from = 2 * len(catalogue) + 1
            return False
        self._complete_from = len(catalogue) + unknown
        return unknown == 0

    def complete_rest(self) -> bool:
        """The same, after reading what is missing if that is little."""
        if self.complete():
            return True
        items, catalogue = self.items, self.items.catalogue
        count = len(self.listing)
        rest_max = min(REST_ITEMS_MAX, int(count * REST_SHARE_MAX))
        if items.node is None or len(catalogue) < count - rest_max:
            return False
        keys = map(items.hash_of, range(count))
        rest = [item for item, key in enumerate(keys) if catalogue.find(key) is None]
        if len(rest) > rest_max:
            return False
        try:
            for start in range(0, len(rest), ITEMS_PER_CALL):
                batch = rest[start : start + ITEMS_PER_CALL]
                items.obtain(items.requests(batch), records_all=True)
        except ForebayError:
            return False  # an epoch that reads the item reports the reason
        self._complete_from = 0
        return self.complete()


def is_of_listing(digest: Path, identity: str, namespace_key: Path | None) -> bool:
    """Whether there is a digest of the objects of a listing, in these versions."""
    try:
        return digest.is_file() and Digest(digest).listing_id(namespace_key) == identity
    except DigestError:
        return False
