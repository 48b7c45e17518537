"""``forebay.Dataset``: the items of a digest, read through the cache.

The dataset is map-style, so every loader that indexes can read it. A read asks the node first, and
the job's agent for what the node does not have. An agent that is gone is started again. All
connections belong to one process: a pickled or forked dataset makes its own.

Methods that ``forebay.DataLoader`` needs beside the public ones begin with an underscore.
:class:`forebay._data.wrap.Wrapped` and :class:`forebay._data.mixture.Mixture` have them, too.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from forebay._data.auto_digest import FoundDigest, digest_for
from forebay._data.columns import read_column
from forebay._data.decoders import DecoderName, decoder
from forebay._data.labels import Labels
from forebay._data.learning import Learning
from forebay._data.map_style import T_co, checked_index
from forebay._data.parts import Divisible
from forebay._data.short_stats import ShortStats, dataset_line
from forebay._native import (
    AgentGone,
    ChangedError,
    Digest,
    DigestError,
    ForebayError,
    ItemMap,
    Reader,
    ReadError,
)
from forebay._runtime.incarnation import Incarnation
from forebay._runtime.job import JobName, new_job, present_job
from forebay._runtime.node import default_socket, endpoint
from forebay._runtime.ranks import ranks_if_known
from forebay._runtime.shared_counters import SharedCounters
from forebay._runtime.storage_options import StorageOptions, check_options
from forebay._runtime.urls import check_url
from forebay._runtime.warnings import printable, warn

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

#: Attempts at one batch before a dying agent is not started again.
ATTEMPTS = 4

#: Words for ``verify``.
VERIFY = ("always", "remote", "never")
#: Counters of verified items, in the order of ``Reader.take_verified``.
VERIFIED = ("items_verified", "items_unverifiable", "hash_mismatches")
#: Values of ``on_error``.
ON_ERROR = ("raise", "skip", "retry")
#: Pauses between attempts with ``on_error="retry"``, in seconds.
RETRY_PAUSES = (0.1, 0.5, 2.0, 5.0)
#: Skipped items that ``skipped()`` names.
SKIPPED_NAMED_MAX = 1000
#: Skipped items that each process warns about.
SKIP_WARNINGS_MAX = 3

_MISSING: Any = object()

#: Attributes that are not pickled: file mappings, connections, and counts of one process.
_PROCESS_LOCAL = {
    "_digest",
    "_columns",
    "_reader",
    "_incarnation",
    "_layout_made",
    "_last_readable",
    "_skip_warnings",
    "_learned_from",
}

_Path = str | PathLike[str]
_Content = bytes | memoryview
_T = TypeVar("_T")


class DatasetOptions(TypedDict, total=False):
    """Options of a dataset that do not change the type of its items."""

    cache: _Path | None
    storage_options: StorageOptions | Mapping[str, Any] | None
    origin: str | None
    namespace_key: _Path | None
    job: str | None
    on_error: Literal["raise", "skip", "retry"]
    verify: Literal["always", "remote", "never"] | float
    layout: Literal["files", "pack", "tar"] | None
    rebuild: bool


class ProbeIndex(int):
    """The index of an item that is part of a probe: it is read from the origin, cached or not."""


class Dataset(Divisible[T_co]):
    """The items of a digest, read through this machine's cache: a map-style PyTorch dataset.

    An index is a number, a slice or a list of numbers; several items are read in few requests.

    Parameters
    ----------
    source
        A digest file, made by ``forebay digest build URL -o x.digest``; or the URL or directory of
        the data, such as ``s3://bucket/train`` or ``file:///data/train``. The digest of a URL is
        kept in the user's cache directory (``~/.cache/forebay/digests``). With a node, the first
        epoch reads each object once and makes the digest from that; the job starts after a listing.
        In other cases the digest is built first. If objects have changed later, only those are read
        again.
    transform
        Called with each item, in the loader's workers; its result is the item.
    decode
        Called with the bytes of each item, before the transform. ``"pil"`` gives RGB images of
        Pillow's, ``"torchvision"`` RGB images as ``uint8`` tensors, ``"audio"`` a ``float32`` array
        of channels and frames with the sample rate (by ``soundfile``).
    labels
        ``"directory"``: an item is ``(bytes, label)``, with the number of its class. A class is the
        first directory in an object's name, as for torchvision's ``ImageFolder``. The name of a
        digest column: a class is a value of the column. :attr:`classes` has the names.
    columns
        Names of digest columns. With at least one, an item is ``(bytes, value, ...)``, else
        ``bytes``; values follow the label. ``"object"`` is the name of the item's object below the
        origin's URL.
    cache
        ``"auto"`` uses the node of this user, and starts one if none is running. A path is the
        socket of a node. ``"tls://host:port"`` is a node on another machine; the environment has
        the job's credentials (``docs/guide/security.md``). Several endpoints are separated by
        commas; one of a cluster is enough. ``None`` reads the origin without a node.
    storage_options
        Access to the origin: ``endpoint``, ``region``, ``profile`` (of AWS), ``access_key``,
        ``secret_key``, ``session_token``, ``anonymous``, ``deadline_seconds``. The default is the
        environment.
    origin
        URL to read the data from instead of the one in the digest.
    namespace_key
        Key file of the digest's namespace, if it is private.
    job
        Name of the job. A process that starts under the same name takes over: the loader of the
        earlier process raises ``forebay.Fenced``. The default is a unique name.
    on_error
        What to do with an item that cannot be read. ``"raise"`` raises an exception. ``"retry"``
        tries four more times over eight seconds; an object whose version has changed is not
        retried. ``"skip"`` leaves the item out and gives another item of its batch twice, so that
        batches keep their length and ranks stay equal; it also covers errors of the transform, and
        :meth:`skipped` names the items.
    verify
        Which items are hashed before the job gets them. A number from 0 to 1 is the share of the
        items from a node of this machine; all items from other machines are verified as well. The
        default is 0.02. ``"remote"`` is 0, ``"always"`` verifies all items, ``"never"`` none. Wrong
        bytes are never given to the job: the item is read again, and the node checks its copy. An
        item of a pack needs a digest of format 2 (``docs/guide/digests.md``); without one,
        ``"always"`` reads the whole pack, and other settings do not verify it.
    layout
        For a URL: how objects are cut into items. ``"files"`` (the default), ``"pack"`` for many
        small ones, or ``"tar"`` for the samples of archives (:func:`forebay.tar_sample`).
    rebuild
        For a URL: build the digest now, before the first epoch. It reads only what has changed.
    views
        Give items, also to the transform, as read-only ``memoryview`` instead of ``bytes``. The
        view is of the node's shared memory if possible, so that nothing is copied. An item occupies
        its memory until nothing refers to it; when all of it is in use, further items are copied. A
        forked child cannot read its parent's views. PyTorch does not support read-only memory: an
        in-place operation on a tensor of a view crashes the process.
    """

    @overload
    def __init__(
        self: Dataset[bytes], source: _Path, **options: Unpack[DatasetOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: Dataset[_T],
        source: _Path,
        *,
        transform: Callable[[Any], _T],
        decode: DecoderName | Callable[[Any], Any] | None = None,
        labels: str | None = None,
        columns: Sequence[str] = (),
        views: bool = False,
        **options: Unpack[DatasetOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Dataset[tuple[bytes, int]],
        source: _Path,
        *,
        labels: str,
        **options: Unpack[DatasetOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Dataset[_T],
        source: _Path,
        *,
        decode: Callable[[bytes], _T],
        **options: Unpack[DatasetOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Dataset[Any],
        source: _Path,
        *,
        transform: Callable[[Any], Any] | None = None,
        decode: DecoderName | Callable[[Any], Any] | None = None,
        labels: str | None = None,
        columns: Sequence[str] = (),
        views: bool = False,
        **options: Unpack[DatasetOptions],
    ) -> None: ...
    def __init__(
        self,
        source: _Path,
        *,
        transform: Callable[[Any], Any] | None = None,
        decode: DecoderName | Callable[[Any], Any] | None = None,
        labels: str | None = None,
        columns: Sequence[str] = (),
        cache: _Path | None = "auto",
        storage_options: StorageOptions | Mapping[str, Any] | None = None,
        origin: str | None = None,
        namespace_key: _Path | None = None,
        job: str | None = None,
        on_error: Literal["raise", "skip", "retry"] = "raise",
        verify: Literal["always", "remote", "never"] | float = 0.02,
        layout: Literal["files", "pack", "tar"] | None = None,
        rebuild: bool = False,
        views: bool = False,
    ) -> None:
        if isinstance(columns, str):
            raise TypeError(f"columns={columns!r}; give a list of names, such as ['label']")
        key = None if namespace_key is None else Path(namespace_key)
        options = dict(storage_options or {})
        check_options(options)
        self._decode = decoder(decode)
        self._source = str(source)
        if origin is not None:
            check_url(origin)
        if not os.fspath(source):
            raise ValueError("the source is empty; give a digest, a URL or a directory")
        node = endpoint(default_socket() if cache == "auto" else cache)
        if "://" in str(source) or Path(source).is_dir():
            found = digest_for(
                str(source),
                layout=layout or "files",
                namespace_key=key,
                options=options,
                rebuild=rebuild,
                node=node,
                start_node=cache == "auto",
                may_learn=origin is None,
            )
        elif layout is not None or rebuild:
            raise ValueError(
                "`layout` and `rebuild` are for URLs, not for a digest file; leave them out"
            )
        else:
            found = FoundDigest(Path(source))
        #: The id in states of loaders, if it is not that of the digest.
        self._identity = found.identity
        self._learning: Learning | None = None
        if found.listing is None:
            self._digest = _open(found.path)
        else:
            assert found.identity is not None
            assert node is not None
            self._learning = Learning(
                str(source),
                found.listing,
                found.path,
                identity=found.identity,
                node=node,
                start_node=cache == "auto",
                namespace_key=key,
                job_name=JobName(job).of(*ranks_if_known()),
                options=options,
            )
            self._digest = self._learning.listing
        #: The item in the digest of each index; ``None`` if they are the same.
        self._selection: NDArray[np.uint32] | None = None
        self._labels = None if labels is None else Labels(self._digest, labels)
        self._column_names = tuple(columns)
        self._columns = self._read_columns()
        self._transform = transform
        self._views = views
        self._job = new_job(
            found.path,
            name=job,
            node=node,
            start_node=cache == "auto",
            origin=origin,
            namespace_key=key,
            verify=check_verify(verify),
            options=options,
        )
        self._job_name = self._job.name
        self._name = self._job_name.of(*ranks_if_known())
        self._reader = self._new_reader()
        self._workers_restarted = 0
        self._verified = SharedCounters(VERIFIED)
        #: Items that loaders have yielded.
        self._items_yielded = 0
        self._set_on_error(on_error)
        self._init_process_local()
        self._settle()

    def _init_process_local(self) -> None:
        """Attributes that each process has of its own."""
        self._layout_made: ItemMap | None = None
        self._last_readable: Any = _MISSING
        self._skip_warnings = 0
        #: The source of addresses before they were known, for the workers that use it still.
        self._learned_from: Learning | None = None
        self._init_incarnation()

    def _init_incarnation(self) -> None:
        """Another incarnation, which leaves the node with this object."""
        self._incarnation = Incarnation()
        if self._learning is not None:
            return  # the node does not know the listing
        weakref.finalize(
            self,
            self._incarnation.leave,
            self._digest,
            self._job.node,
            self._job.socket,
        )

    def _read_columns(self) -> list[Any]:
        """The values that an item has beside its bytes, by item of the digest."""
        columns = [read_column(self._digest, name) for name in self._column_names]
        return columns if self._labels is None else [self._labels, *columns]

    def __len__(self) -> int:
        return len(self._digest) if self._selection is None else len(self._selection)

    def _item(self, index: int) -> Any:
        item = self._ordinal(index)
        (content,) = self._read([item], isinstance(index, ProbeIndex))
        return self._finish(item, content)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The items of a batch, in one request."""
        items = self._ordinals(indices)
        is_probe = any(isinstance(index, ProbeIndex) for index in indices)
        if self._on_error == "skip" and len(items) > 0:
            return self._read_and_skip(items, is_probe)
        contents = self._read(items, is_probe)
        return [self._finish(item, content) for item, content in zip(items, contents, strict=True)]

    def _part(self, indices: NDArray[np.uint32]) -> Self:
        part = copy.copy(self)
        part._selection = indices if self._selection is None else self._selection[indices]
        return part

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _PROCESS_LOCAL}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        learning = self._learning
        self._digest = _open(self._job.digest) if learning is None else learning.listing
        self._columns = self._read_columns()
        # A copy reads for the same job, but takes part in rotation under a name of its own.
        self._job_name = self._job.name.of_copy()
        self._reader = self._new_reader()
        self._init_process_local()

    def __repr__(self) -> str:
        whole = "" if self._selection is None else f" of {len(self._digest)}"
        return f"forebay.Dataset({self._source!r}, {len(self)}{whole} items)"

    @property
    def classes(self) -> tuple[Any, ...]:
        """Names of the classes, in the order of their numbers; empty without ``labels``."""
        return () if self._labels is None else self._labels.classes

    def column(self, name: str) -> Sequence[Any]:
        """The values of a column of the digest.

        Parameters
        ----------
        name
            Name of the column; every dataset has ``"object"``.

        Returns
        -------
        Sequence
            One value per item, in the dataset's order.

        Raises
        ------
        KeyError
            The digest has no such column.
        """
        values = read_column(self._digest, name)
        if self._selection is None:
            return values
        return [values[item] for item in self._selection.tolist()]

    def skipped(self) -> dict[str, Any]:
        """Items that were left out with ``on_error="skip"``, in all processes of the job.

        Returns
        -------
        dict
            ``count``: how often an item was skipped. ``items``: the first thousand of them.
        """
        items: list[int] = []
        with suppress(OSError):
            items = [int(line) for line in (self._job.directory / "skipped").read_text().split()]
        if self._selection is not None:
            # The job's other parts have skipped items, too.
            indices = {item: index for index, item in enumerate(self._selection.tolist())}
            items = [indices[item] for item in items if item in indices]
        return {"count": len(items), "items": items[:SKIPPED_NAMED_MAX]}

    def stats(self) -> dict[str, dict[str, int] | None]:
        """Counters of the node, this job's agent and its loaders (``docs/reference/metrics.md``).

        Returns
        -------
        dict
            ``node`` (``None`` without a node), ``agent`` and ``loader``, each a dict of counters.
            Printed, it is one line for people; ``dict(dataset.stats())`` prints all counters.
        """
        learning = self._learning
        stats = self._with_agent(Reader.stats) if learning is None else learning.stats()
        loader = {"workers_restarted": self._workers_restarted, **self._verified.totals()}
        return ShortStats({**stats, "loader": loader}, dataset_line)

    # Below: for forebay's loaders.

    @property
    def _id(self) -> str:
        """The dataset id; for a part, with a hash of its items."""
        whole = self._identity or self._digest.dataset
        if self._selection is None:
            return whole
        part = hashlib.sha256(self._selection.tobytes()).hexdigest()[:32]
        return f"{whole} part {part}"

    @property
    def _layout(self) -> ItemMap:
        """The half-chunk of each item; made on first use."""
        if self._layout_made is None:
            whole = ItemMap(self._digest, self._identity)
            selection = self._selection
            self._layout_made = whole if selection is None else whole.part(selection)
        return self._layout_made

    @property
    def _has_node(self) -> bool:
        """Whether a node is configured; it need not be running."""
        return self._job.node is not None

    @property
    def _gives_views(self) -> bool:
        """Whether the loader's ``collate_fn`` receives views."""
        return self._views and self._transform is None and self._decode is None

    @property
    def _blob_bytes(self) -> int:
        """Mean length of a blob."""
        return self._digest.bytes // max(1, self._digest.blobs)

    def _join(self, rank: int, world: int) -> str:
        """Take part in rotation as this rank; returns the name that nodes know it by."""
        name = self._job_name.of(rank, world)
        if name != self._name:
            before, self._name = self._reader, name
            self._reader = self._new_reader(before)
        if self._learning is not None:
            self._learning.join(name)
        return name

    def _settle(self) -> None:
        """Continue with the digest, if all addresses are known by now. Between epochs only."""
        learning = self._learning
        if learning is None or not learning.complete_rest():
            return
        self._digest = _open(self._job.digest)
        self._columns = self._columns and self._read_columns()
        self._learning, self._learned_from = None, learning
        self._reader = self._new_reader()
        self._init_incarnation()

    def _new_reader(self, before: Reader | None = None) -> Reader:
        """A reader for this process. While addresses are learned, it knows no node."""
        if self._learning is not None:
            return self._learning.reader
        return self._job.reader(self._digest, self._name, before)

    def _missed(self) -> int:
        """Items that were requested from the agent because the node did not have them."""
        if self._learning is not None:
            return self._learning.items.counters.totals()["read"]
        with suppress(ForebayError):  # without an agent nothing was missed
            return (self._reader.stats()["agent"] or {}).get("agent_items", 0)
        return 0

    def _set_on_error(self, on_error: str) -> None:
        if on_error not in ON_ERROR:
            values = ", ".join(map(repr, ON_ERROR))
            raise ValueError(f"there is no on_error={on_error!r}; give one of {values}")
        self._on_error = on_error

    def _count_worker_restart(self) -> None:
        self._workers_restarted += 1

    def _prefetch_hint(self, items: Sequence[int]) -> None:
        """Announce items that will be read soon, in that order, to the agent."""
        if self._learning is not None:
            return  # the agent would read what another job may have claimed
        items = self._ordinals(items)
        self._with_agent(lambda reader: reader.prefetch_hint(items))

    def _request(self, indices: Sequence[int]) -> None:
        """Request a batch from the node, without waiting for it; a later read takes it."""
        if self._asks_ahead and not any(isinstance(index, ProbeIndex) for index in indices):
            self._reader.request(self._ordinals(indices))

    def _cancel(self, indices: Sequence[int]) -> None:
        """Give up a batch that was requested: it will not be read."""
        if self._asks_ahead and not any(isinstance(index, ProbeIndex) for index in indices):
            self._reader.cancel(self._ordinals(indices))

    @property
    def _asks_ahead(self) -> bool:
        """Whether batches are requested from the node in advance."""
        return self._learning is None

    def _index(self, index: int) -> int:
        """An index from 0; negative ones count from the end."""
        return checked_index(index, len(self))

    def _ordinal(self, index: int) -> int:
        """The item in the digest at an index."""
        index = self._index(index)
        return index if self._selection is None else int(self._selection[index])

    def _ordinals(self, indices: Iterable[int]) -> list[int]:
        """The items in the digest at these indices."""
        return [self._ordinal(index) for index in indices]

    # Below: reading.

    def _read(self, items: list[int], is_probe: bool) -> Sequence[_Content]:
        pauses = iter(RETRY_PAUSES if self._on_error == "retry" else ())
        while True:
            try:
                if self._learning is not None:
                    return self._learned(self._learning, items, is_probe)
                return self._with_agent(lambda reader: self._contents(reader, items, is_probe))
            except ChangedError:
                raise  # a retry cannot bring the old version back
            except ReadError:
                pause = next(pauses, None)
                if pause is None:
                    raise
                time.sleep(pause)

    def _learned(self, learning: Learning, items: list[int], is_probe: bool) -> Sequence[_Content]:
        contents = learning.read_past_the_cache(items) if is_probe else learning.read(items)
        return [memoryview(content) for content in contents] if self._views else contents

    def _contents(self, reader: Reader, items: list[int], is_probe: bool) -> Sequence[_Content]:
        try:
            return self._read_contents(reader, items, is_probe)
        finally:
            counts = zip(VERIFIED, reader.take_verified(), strict=True)
            self._verified.add(**dict(counts))

    def _read_contents(
        self, reader: Reader, items: list[int], is_probe: bool
    ) -> Sequence[_Content]:
        if is_probe:
            contents = reader.get_past_the_cache(items)
            return [memoryview(content) for content in contents] if self._views else contents
        if self._views:
            return [np.asarray(view).data for view in reader.views(items)]
        return reader.get(items)

    def _read_and_skip(self, items: list[int], is_probe: bool) -> list[Any]:
        """The readable items; each unreadable one is replaced by one of them, in turn."""
        try:
            contents: list[Any] = list(self._read(items, is_probe))
        except ReadError:
            contents = [_MISSING] * len(items)  # at least one is unreadable: read them singly
        found, problem = [], None
        for item, content in zip(items, contents, strict=True):
            try:
                if content is _MISSING:
                    (content,) = self._read([item], is_probe)
                found.append(self._finish(item, content))
            except AgentGone:
                raise
            except Exception as error:
                problem = error
                self._skip(item, error)
                found.append(_MISSING)
        readable = [item for item in found if item is not _MISSING]
        if readable:
            self._last_readable = readable[-1]
        elif self._last_readable is _MISSING:
            assert problem is not None
            add_note(problem, f"none of these {len(items)} items could be read, nor any before")
            raise problem
        substitutes = itertools.cycle(readable or [self._last_readable])
        return [next(substitutes) if item is _MISSING else item for item in found]

    def _skip(self, item: int, problem: Exception) -> None:
        """Record a skipped item in the job's directory; warn about the first ones."""
        self._skip_warnings += 1
        if self._skip_warnings <= SKIP_WARNINGS_MAX:
            message = f"item {item} is skipped: {describe(problem)}"
            last = "; further skipped items are not warned about: see stats()"
            warn(message + (last if self._skip_warnings == SKIP_WARNINGS_MAX else ""))
        with suppress(OSError), (self._job.ensure_directory() / "skipped").open("a") as file:
            file.write(f"{item}\n")

    def _with_agent(self, act: Callable[[Reader], _T]) -> _T:
        """Call ``act``; if the agent is not there, start it and call again."""
        attempts = 1
        while True:
            try:
                result = act(self._reader)
                break
            except AgentGone:
                if attempts == ATTEMPTS:
                    raise
            attempts += 1
            self._job = present_job(self._job)
            self._job.ensure_agent()
            # A new reader tries a node that was just started without a backoff.
            self._reader = self._job.reader(self._digest, self._name, self._reader)
        if self._reader.take_node_failure():
            self._job.restart_node()
        return result

    def _finish(self, item: int, content: _Content) -> Any:
        value: Any = content
        step = "decoder"
        try:
            if self._decode is not None:
                value = self._decode(content)
            step = "transform"
            if self._columns:
                value = (value, *(values[item] for values in self._columns))
            return value if self._transform is None else self._transform(value)
        except Exception as problem:
            add_note(problem, f"in the {step} of item {item}, `{self._digest.object(item)}`")
            raise


def check_verify(verify: str | float) -> str:
    """The text of a value of ``verify``; raises ``ValueError`` for another."""
    if isinstance(verify, str) and verify in VERIFY:
        return verify
    if isinstance(verify, (int, float)) and not isinstance(verify, bool) and 0 <= verify <= 1:
        return str(float(verify))
    words = ", ".join(map(repr, VERIFY))
    raise ValueError(f"there is no verify={verify!r}; give {words} or a share from 0 to 1")


def describe(problem: Exception) -> str:
    """The text of an exception, with its class unless it is forebay's own."""
    text = str(problem)
    return text if isinstance(problem, ForebayError) else f"{type(problem).__name__}: {text}"


def add_note(problem: Exception, note: str) -> None:
    """Add a note to an exception's traceback, from Python 3.11 on."""
    if hasattr(problem, "add_note"):
        problem.add_note(note)


def _open(path: _Path) -> Digest:
    if not Path(path).is_file():
        hint = "check its spelling, or make a digest with `forebay digest build URL -o x.digest`"
        raise DigestError(printable(f"there is no file or directory `{path}`; {hint}"))
    return Digest(path)
