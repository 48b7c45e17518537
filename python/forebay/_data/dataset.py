"""A map-style dataset over a digest: any loader that indexes can use it, PyTorch's first of all."""

from __future__ import annotations

import itertools
import operator
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from forebay._digests import digest_for
from forebay._job import check_options, new_job, present_job
from forebay._native import (
    AgentGone,
    ChangedError,
    Digest,
    DigestError,
    ForebayError,
    Layout,
    Reader,
    ReadError,
)
from forebay._node import default_socket, endpoint
from forebay._participation import Participation
from forebay._ranks import ranks
from forebay._warnings import warn

#: An agent that dies so often over one batch is not started again.
ATTEMPTS = 4

#: Items that are read at once when the whole dataset is.
AT_ONCE = 64

#: The column that every digest has: what the object is called that an item is of.
OBJECT = "object"

#: What becomes of items that cannot be read.
ON_ERROR = ("raise", "skip", "retry")
#: Pauses between attempts with ``on_error="retry"``, in seconds.
RETRY_PAUSES = (0.1, 0.5, 2.0, 5.0)
#: Items that were skipped are named up to so many.
SKIPPED_NAMED_MAX = 1000
#: So many of them are warned of, in each process.
SKIPS_TOLD_MAX = 3

_MISSING: Any = object()

#: What a dataset does not take along to another process: maps, connections, and what it said there.
_OF_ONE_PROCESS = {
    "_digest",
    "_columns",
    "_reader",
    "participation",
    "_layout",
    "_last_good",
    "_skips_told",
}

_Path = str | PathLike[str]
_Content = bytes | memoryview
_T = TypeVar("_T")


class PastCache(int):
    """An item that is to be read from the origin, whatever is cached: part of a probe."""


class Dataset:
    """The items of a digest, read through this machine's cache.

    Parameters
    ----------
    source
        A file that ``forebay digest build URL -o x.digest`` made; or the URL of the data itself,
        such as ``s3://bucket/train`` or ``file:///data/train``. A digest of it is then built on
        first use and kept in the user's cache directory (``~/.cache/forebay/digests``).
    transform
        Called with each item; what it returns is the item. Runs in the loader's workers.
    columns
        Names of the digest's columns. With any, an item is ``(bytes, value, ...)``, else ``bytes``.
        ``"object"`` is the name of the object that an item is of, below the origin's URL.
    cache
        ``"auto"`` uses this user's node and starts it if need be; a path is the socket of a node,
        ``"tls://host:port"`` a node of another machine (who the job is to it, the environment
        says: ``docs/security.md``; of several that share the work one is enough, or some with
        commas in between); ``None`` reads the origin without one.
    storage_options
        How to reach the origin: ``endpoint``, ``access_key``, ``secret_key``, ``anonymous``,
        ``deadline_seconds``. By default, what the environment says.
    origin
        Read the data from this URL instead of where the digest says.
    namespace_key
        The key file of the digest's namespace, if it is private.
    job
        What the job is called. A job that is started again under its name takes over from its
        predecessor, whose loader then raises ``forebay.Fenced``. By default a name of its own.
    on_error
        What becomes of items that cannot be read: ``"raise"`` an exception; ``"retry"`` some
        times, unless the origin has another version now, then raise; ``"skip"`` them, and give
        another item of the batch twice in their stead, so that all ranks go on alike. ``"skip"`` is
        also for what a transform cannot read.
        ``skipped()`` says which.
    layout
        For a URL: how items are found, ``"files"`` (the default), ``"pack"`` for many small ones or
        ``"tar"`` for the samples of archives (:func:`forebay.tar_sample`).
    rebuild
        For a URL: build its digest again. Without, a warning says if the origin has changed.
    views
        Give items (and transforms) a read-only ``memoryview`` instead of ``bytes``: of the memory
        that the node shares with this process where it can be, so that nothing is copied. An item
        keeps its place there until it, and all that was made of its memory, is gone; when all
        places are taken, items are copied after all. A forked child cannot read its parent's views,
        and nobody may write to them: PyTorch, which does not know read-only memory, would crash.
    """

    def __init__(
        self,
        source: _Path,
        *,
        transform: Callable[[Any], Any] | None = None,
        columns: Sequence[str] = (),
        cache: _Path | None = "auto",
        storage_options: Mapping[str, object] | None = None,
        origin: str | None = None,
        namespace_key: _Path | None = None,
        job: str | None = None,
        on_error: Literal["raise", "skip", "retry"] = "raise",
        layout: str | None = None,
        rebuild: bool = False,
        views: bool = False,
    ) -> None:
        if isinstance(columns, str):
            raise TypeError("`columns` is a list of names, such as columns=['label']")
        key = None if namespace_key is None else Path(namespace_key)
        options = storage_options or {}
        check_options(options)
        if "://" in str(source) or Path(source).is_dir():
            source = digest_for(
                str(source),
                layout=layout or "files",
                namespace_key=key,
                options=options,
                rebuild=rebuild,
            )
        elif layout is not None or rebuild:
            raise ValueError("`layout` and `rebuild` are for URLs, of which a digest is built here")
        self._digest = _open(source)
        self._column_names = tuple(columns)
        self._columns = [_column(self._digest, name) for name in columns]
        self._transform = transform
        self._views = views
        node = endpoint(default_socket() if cache == "auto" else cache)
        self._job = new_job(
            Path(source),
            name=job,
            node=node,
            start_node=cache == "auto",
            origin=origin,
            namespace_key=key,
            options=options,
        )
        self._called = self._job.called
        self._name = self._called.of(*ranks())
        self._reader = self._job.reader(self._digest, self._name)
        self._workers_restarted = 0
        #: Items that loaders have given to their users.
        self.given = 0
        self.on_error = on_error
        self._local()

    def _local(self) -> None:
        """What every process has of its own."""
        self.participation = Participation()
        self._layout: Layout | None = None
        self._last_good: Any = _MISSING
        self._skips_told = 0
        weakref.finalize(
            self,
            self.participation.end,
            self._digest,
            self._job.node,
            self._job.socket,
        )

    def __len__(self) -> int:
        return len(self._digest)

    def __getitem__(self, index: int) -> Any:
        item = self.ordinal(index)
        (content,) = self._read([item], isinstance(index, PastCache))
        return self._finish(item, content)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The items of a batch, in one request."""
        items = [self.ordinal(index) for index in indices]
        is_probe = any(isinstance(index, PastCache) for index in indices)
        if self._on_error == "skip" and len(items) > 0:
            return self._readable(items, is_probe)
        contents = self._read(items, is_probe)
        return [self._finish(item, content) for item, content in zip(items, contents, strict=True)]

    def _read(self, items: list[int], is_probe: bool) -> Sequence[_Content]:
        pauses = iter(RETRY_PAUSES if self._on_error == "retry" else ())
        while True:
            try:
                return self._with_agent(lambda reader: self._contents(reader, items, is_probe))
            except ChangedError:
                raise  # whatever becomes of the origin, it is not what it was
            except ReadError:
                pause = next(pauses, None)
                if pause is None:
                    raise
                time.sleep(pause)

    def _contents(self, reader: Reader, items: list[int], is_probe: bool) -> Sequence[_Content]:
        if is_probe:
            contents = reader.get_past_the_cache(items)
            return [memoryview(content) for content in contents] if self._views else contents
        if self._views:
            return [np.asarray(view).data for view in reader.views(items)]
        return reader.get(items)

    def _readable(self, items: list[int], is_probe: bool) -> list[Any]:
        """What can be read of these; the others' places are taken by it, in turn."""
        try:
            contents: list[Any] = list(self._read(items, is_probe))
        except ReadError:
            contents = [_MISSING] * len(items)  # one of them, so each for itself
        found, problem = [], None
        for item, content in zip(items, contents, strict=True):
            try:
                if content is _MISSING:
                    (content,) = self._read([item], is_probe)
                found.append(self._finish(item, content))
            except AgentGone:
                raise
            except Exception as one:
                problem = one
                self._skip(item, one)
                found.append(_MISSING)
        good = [item for item in found if item is not _MISSING]
        if good:
            self._last_good = good[-1]
        elif self._last_good is _MISSING:
            assert problem is not None
            noted(problem, f"none of these {len(items)} items could be read, and none before them")
            raise problem
        stand_ins = itertools.cycle(good or [self._last_good])
        return [next(stand_ins) if item is _MISSING else item for item in found]

    def _skip(self, item: int, problem: Exception) -> None:
        """Note it where all processes of the job find it; the first ones are told of, too."""
        self._skips_told += 1
        if self._skips_told <= SKIPS_TOLD_MAX:
            told = f"item {item} is skipped: {described(problem)}"
            last = "; others are, too, without a word: stats() counts them"
            warn(told + (last if self._skips_told == SKIPS_TOLD_MAX else ""))
        with suppress(OSError), (self._job.made() / "skipped").open("a") as notes:
            notes.write(f"{item}\n")

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), AT_ONCE):
            yield from self.__getitems__(range(start, min(start + AT_ONCE, len(self))))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _OF_ONE_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._digest = _open(self._job.digest)
        self._columns = [_column(self._digest, name) for name in self._column_names]
        # A copy reads for the same job, but takes part in rotations by itself.
        self._called = self._job.called.of_a_copy()
        self._reader = self._job.reader(self._digest, self._name)
        self._local()

    def __repr__(self) -> str:
        return f"forebay.Dataset({str(self._job.digest)!r}, {len(self)} items)"

    @property
    def id(self) -> str:
        """What all who share the dataset agree on."""
        return self._digest.dataset

    @property
    def layout(self) -> Layout:
        """Which item is where; made when it is first asked for."""
        if self._layout is None:
            self._layout = Layout(self._digest)
        return self._layout

    def column(self, name: str) -> Sequence[Any]:
        """The values of one of the digest's columns, one for each item."""
        return _column(self._digest, name)

    def join(self, rank: int, world: int) -> str:
        """Take part in the dataset's rotation, under a name that no other process has."""
        name = self._called.of(rank, world)
        if name != self._name:
            self._name, self._reader = name, self._job.reader(self._digest, name, self._reader)
        return name

    @property
    def has_node(self) -> bool:
        """Whether there is to be a node; it may be away."""
        return self._job.node is not None

    @property
    def gives_views(self) -> bool:
        """Whether loaders are given views, as nobody makes anything else of them."""
        return self._views and self._transform is None

    def missed(self) -> int:
        """Items that the agent was asked for so far, because the node did not have them."""
        with suppress(ForebayError):  # there is no agent yet, and so nothing was missed
            return (self._reader.stats()["agent"] or {}).get("agent_gets", 0)
        return 0

    @property
    def on_error(self) -> str:
        """What becomes of items that cannot be read."""
        return self._on_error

    @on_error.setter
    def on_error(self, what: str) -> None:
        if what not in ON_ERROR:
            there_are = ", ".join(map(repr, ON_ERROR))
            raise ValueError(f"there is no on_error={what!r}; there are {there_are}")
        self._on_error = what

    def skipped(self) -> dict[str, Any]:
        """How often items were skipped (``count``), and the first thousand of them (``items``)."""
        notes: list[str] = []
        with suppress(OSError):
            notes = (self._job.directory / "skipped").read_text().split()
        return {"count": len(notes), "items": [int(item) for item in notes[:SKIPPED_NAMED_MAX]]}

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

    def ask(self, indices: Sequence[int]) -> None:
        """Have the node read the batch that will be asked for next, while this process goes on."""
        if not any(isinstance(index, PastCache) for index in indices):
            self._reader.ask([self.ordinal(index) for index in indices])

    def give_up(self, indices: Sequence[int]) -> None:
        """What was asked for so will not be read after all."""
        if not any(isinstance(index, PastCache) for index in indices):
            self._reader.give_up([self.ordinal(index) for index in indices])

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
            self._reader = self._job.reader(self._digest, self._name, self._reader)
        if self._reader.node_fell():
            self._job.revive_node()
        return answer

    def ordinal(self, index: int) -> int:
        """An item's ordinal, by the rules of a list's indices."""
        item = operator.index(index)
        length = len(self)
        if not -length <= item < length:
            raise IndexError(f"item {item} of {length}")
        return item % length

    def _finish(self, item: int, content: _Content) -> Any:
        told: Any = content
        if self._columns:
            told = (content, *(values[item] for values in self._columns))
        if self._transform is None:
            return told
        try:
            return self._transform(told)
        except Exception as problem:
            noted(problem, f"in the transform of item {item}, `{self._digest.object(item)}`")
            raise


def described(problem: Exception) -> str:
    """What a warning says of an exception; forebay's own texts need no class."""
    said = str(problem)
    return said if isinstance(problem, ForebayError) else f"{type(problem).__name__}: {said}"


def noted(problem: Exception, note: str) -> None:
    """Have a traceback say more, where Python can."""
    if hasattr(problem, "add_note"):
        problem.add_note(note)


def _open(path: _Path) -> Digest:
    hint = "a digest is made with `forebay digest build URL -o x.digest`"
    if not Path(path).is_file():
        raise DigestError(f"there is no file `{path}`; {hint}")
    try:
        return Digest(path)
    except DigestError as problem:
        raise DigestError(f"{problem}; {hint}") from None


def _column(digest: Digest, name: str) -> Sequence[Any]:
    """A column's values; numbers lie in an array, which forked workers share."""
    if name == OBJECT and name not in digest.columns:
        return _Objects(digest)
    if name not in digest.columns:
        there_are = ", ".join([*digest.columns, OBJECT])
        raise KeyError(
            f"the digest has no column `{name}`; there are {there_are}, and others come from a"
            " table: `forebay digest build URL -o x.digest --columns table.csv`"
        )
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
        if isinstance(index, slice):
            return self._array[index].tolist()
        return self._array.item(index)

    def __repr__(self) -> str:
        return f"<{len(self)} numbers: {self._array}>"


class _Objects(Sequence[str]):
    """The names of items' objects, each read from the digest when it is asked for."""

    def __init__(self, digest: Digest) -> None:
        self._digest = digest

    def __len__(self) -> int:
        return len(self._digest)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._digest.object(item) for item in range(*index.indices(len(self)))]
        return self._digest.object(range(len(self))[index])
