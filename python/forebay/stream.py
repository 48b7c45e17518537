"""Streams: data that is written once and read back in order, at device speed, with little memory.

``Store`` keeps streams in one file on local flash. ``Writer`` appends tables, arrays or bytes;
``Reader`` hands them out again, read ahead into memory that the store took when it was opened.
Tables travel by Arrow's PyCapsule interface, so pyarrow, Polars, DuckDB and pandas write and read
them; none of these is needed to import this module. Opening a store starts one thread, and another
when the first process borrows; importing this module starts none.
"""

from __future__ import annotations

import ast
import datetime
import math
import operator
import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from forebay import _native
from forebay._native import Batch, StoreFull, StreamError, StreamLost

__all__ = [
    "Batch",
    "Family",
    "Reader",
    "Store",
    "StoreFull",
    "StreamError",
    "StreamInfo",
    "StreamLost",
    "Writer",
]

#: A block with an array is a ``.npy`` file: this, the length of the header in four bytes, the
#: header, and the values from a multiple of 64 on.
#: Version 3.0 has names of fields in UTF-8.
_MAGIC = npy.magic(3, 0)
#: Longest header of an array: NumPy's own limit for reading.
_HEADER_MAX = 10_000
#: What bytes that are not a header raise while they are decoded.
_BAD_HEADER = (ValueError, TypeError, LookupError, SyntaxError, MemoryError, RecursionError)


class StreamInfo(NamedTuple):
    """A stream of a store.

    ``state`` is ``"writing"``, ``"sealed"`` or ``"consumed"``. ``lifetime`` is ``"process"``,
    ``"kept"``, or the seconds of a lease. ``lost`` has the ranges of blocks that are lost.
    """

    name: str
    family: str
    state: str
    blocks: int
    bytes: int
    readers: int
    lifetime: str | float
    lost: list[tuple[int, int]]


def _info(values: _native.StreamInfoTuple) -> StreamInfo:
    name, family, state, blocks, size, readers, word, seconds, lost = values
    lifetime = word if seconds is None else seconds
    return StreamInfo(name, family, state, blocks, size, readers, lifetime, lost)


class Writer:
    """Writer of a stream; ``Store.create`` and ``Family.create`` make one.

    As a context manager it seals the stream, or drops it after an exception. A stream has one kind
    of content: tables of one schema, arrays of one dtype, or bytes.
    """

    def __init__(self, native: _native.StreamWriter, name: str) -> None:
        self._native = native
        self._name = name
        self._kind: str | None = None
        self._dtype: np.dtype[Any] | None = None

    def append(self, data: Any) -> None:
        """Append a table, an array or bytes.

        Long tables and arrays become several batches or arrays, split by rows; long bytes become
        several blocks. An append that fails before its first block leaves the writer usable. One
        that fails later drops the stream: create it and write it again.

        Parameters
        ----------
        data
            An object with ``__arrow_c_stream__`` or ``__arrow_c_array__`` (a table or a record
            batch of pyarrow, Polars, DuckDB or pandas, or a ``Reader``), an array of NumPy, or
            anything with the buffer protocol.
        """
        if hasattr(data, "__arrow_c_stream__"):
            self._check_kind("tables")
            self._native.append_stream(data.__arrow_c_stream__())
            self._kind = "tables"
        elif hasattr(data, "__arrow_c_array__"):
            self._check_kind("tables")
            self._native.append_array(*data.__arrow_c_array__())
            self._kind = "tables"
        elif isinstance(data, np.ma.MaskedArray):
            raise TypeError("cannot append a masked array: append array.filled(value)")
        elif hasattr(data, "__array__"):
            self._append_array(np.asarray(data))
        else:
            try:
                view = memoryview(data)
            except TypeError:
                raise TypeError(
                    f"cannot append {type(data).__name__!r}: use an Arrow table, a NumPy array, "
                    "or bytes"
                ) from None
            self._append_bytes(view)

    def seal(self) -> StreamInfo:
        """Seal the stream: it is complete, and can be opened.

        A stream that outlives its process is durable when this returns.
        """
        return _info(self._native.seal())

    def abandon(self) -> None:
        """Drop the stream, unless it is sealed."""
        self._native.abandon()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.seal()
        else:
            self.abandon()

    def _check_kind(self, kind: str) -> None:
        if self._kind not in (None, kind):
            raise StreamError(
                f"stream {self._name!r} has {self._kind}: write {kind} to another stream"
            )

    def _append_array(self, array: NDArray[Any]) -> None:
        dtype = array.dtype
        descriptor = _descriptor(dtype)
        self._check_kind("arrays")
        # NumPy says that None equals float64.
        if self._dtype is not None and self._dtype != dtype:
            raise StreamError(
                f"stream {self._name!r} has arrays of {self._dtype}, but this one has {dtype}: "
                "use one dtype per stream"
            )
        rows = array.shape[0] if array.ndim else 1
        row = array.nbytes // rows if rows else 0
        space = self._native.block_length - len(_header(array.shape, descriptor))
        if row > space:
            raise StreamError(
                f"one row of the array (shape {array.shape}, {dtype}) has {row} bytes, but a block "
                f"of this store has room for {space}: reshape the array into shorter rows"
            )
        step = min(rows, space // row) if row else rows
        if array.ndim == 0 or step >= rows:
            self._append_part(array, descriptor, True, True)
        else:
            for first in range(0, rows, step):
                part = array[first : first + step]
                self._append_part(part, descriptor, first == 0, first + step >= rows)
        self._kind, self._dtype = "arrays", dtype

    def _append_part(
        self, array: NDArray[Any], descriptor: Any, is_first: bool, is_last: bool
    ) -> None:
        header = np.frombuffer(_header(array.shape, descriptor), np.uint8)
        flat = np.ascontiguousarray(array).reshape(-1)
        values = flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)
        self._native.append_block([header, values], is_first, is_last)

    def _append_bytes(self, view: memoryview) -> None:
        if not view.c_contiguous:
            raise TypeError("cannot append a buffer that is not contiguous: append bytes(buffer)")
        self._check_kind("bytes")
        flat = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
        length = self._native.block_length
        for first in range(0, max(1, len(flat)), length):
            end = first + length
            self._native.append_block([flat[first:end]], first == 0, end >= len(flat))
        self._kind = "bytes"


class Family:
    """Streams of one lifetime that share regions; ``Store.family`` makes one.

    A thousand short streams of one family take the space of their bytes. Each in a family of its
    own would take at least one region.
    """

    def __init__(self, native: _native.StreamFamily) -> None:
        self._native = native

    def create(self, name: str, *, full: str = "error") -> Writer:
        """Create a stream in this family.

        Parameters
        ----------
        name
            Its name, which no other stream of the store has.
        full
            What an append does when the store is full: ``"error"``, or ``"wait"`` for a consumer.
        """
        return Writer(self._native.create(_name(name), full), name)

    def destroy(self) -> None:
        """Destroy all its streams in one step. Their readers get an error."""
        self._native.destroy()


class Reader:
    """Reader of a stream, once and in order; ``Store.open`` makes one.

    Iterating yields the batches of a stream of tables. ``arrays()`` and ``bytes()`` read the other
    kinds. Arrow libraries consume a reader directly, for example ``pyarrow.table(reader)`` or
    ``polars.DataFrame(reader)``.

    Batches, arrays and bytes are views of the reader's memory, without a copy. They are valid while
    they are held. A consumer that holds ``depth`` blocks gets more of them outside that memory.
    """

    def __init__(self, native: _native.StreamReader, name: str) -> None:
        self._native = native
        self._name = name

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self._native.next_batch()
        if batch is None:
            raise StopIteration
        return batch

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Hand the batches that have not been read over to an Arrow library."""
        return self._native.arrow_stream()

    def __arrow_c_schema__(self) -> object:
        """Return the schema of a stream of tables."""
        return self._native.schema()

    def arrays(self) -> Iterator[NDArray[Any]]:
        """Yield the arrays of the stream, read-only."""
        while (block := self._native.next_block()) is not None:
            yield _array(self._name, block)

    def bytes(self) -> Iterator[memoryview]:
        """Yield the blocks of the stream as read-only bytes, of any kind of stream."""
        while (block := self._native.next_block()) is not None:
            yield np.asarray(block).data

    def close(self) -> None:
        """End reading. What is held stays valid."""
        self._native.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Store:
    """Streams in one file on local flash, or on a node.

    The first process that opens a store owns it. Other processes of the same user that open it, and
    forked children, borrow: they read its sealed streams, without a copy and without a thread. They
    get an error when the owner ends.

    A node keeps streams for its owner and for tenants with a budget (``streams`` in its
    configuration). It has names of its own for each of them. There are no families there, no
    ``follow``, and no ``full="wait"``; ``"process"`` is until the node stops. Each writer and each
    reader has a connection of its own. Tokens and certificates are those of the environment, such
    as ``FOREBAY_TOKEN_FILE``.

    Parameters
    ----------
    directory
        Directory of the store, on a file system with direct I/O. It is created with mode 0700. Or
        a node: ``"tcp://HOST:PORT"``, ``"tls://HOST:PORT"``, or the path of its socket.
    capacity
        Size of the file, which is reserved at once: bytes, or a string such as ``"50GB"``. None
        opens a store that exists, with the capacity that it has.
    memory
        Memory for writing, reading and the index, taken at once.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        capacity: int | str | None = None,
        *,
        memory: int | str = "64MiB",
    ) -> None:
        size = None if capacity is None else _size(capacity, "capacity")
        path = os.fspath(directory)
        if not path:
            raise ValueError("the directory is empty: name one, such as '/var/tmp/streams'")
        self._native = _native.StreamStore(path, size, _size(memory, "memory"))

    @property
    def is_owner(self) -> bool:
        """Whether this process owns the store."""
        return self._native.is_owner

    def create(
        self,
        name: str,
        *,
        lifetime: str | float | datetime.timedelta = "process",
        full: str = "error",
    ) -> Writer:
        """Create a stream.

        Parameters
        ----------
        name
            Its name: 1 to 128 bytes that no other stream of the store has.
        lifetime
            ``"process"`` until the store is closed, ``"kept"`` until the stream is destroyed, or
            a lease: seconds or a ``timedelta`` after the seal.
        full
            What an append does when the store is full: ``"error"``, or ``"wait"`` for a consumer.
        """
        return Writer(self._native.create(_name(name), _lifetime(lifetime), full), name)

    def family(
        self, name: str, *, lifetime: str | float | datetime.timedelta = "process"
    ) -> Family:
        """Create a family: streams of one lifetime that share regions.

        Parameters
        ----------
        name
            Its name, for listings.
        lifetime
            The lifetime of its streams, as in ``create``.
        """
        return Family(self._native.family(_name(name), _lifetime(lifetime)))

    def open(
        self,
        name: str,
        *,
        depth: int = 4,
        in_flight: int | None = None,
        when_held: str = "outside",
        follow: bool = False,
        consume: bool = False,
    ) -> Reader:
        """Open a stream for reading.

        Parameters
        ----------
        name
            Its name.
        depth
            Blocks of the reader's memory: how far it reads ahead.
        in_flight
            Reads at a time; None is ``depth``.
        when_held
            What to do when all blocks of the reader's memory are held: read ``"outside"`` it, or
            ``"wait"`` until another thread releases one.
        follow
            Read a stream that is being written, up to its seal.
        consume
            Destroy the stream while it is read.
        """
        slots = _count(depth, "depth")
        reads = slots if in_flight is None else _count(in_flight, "in_flight")
        native = self._native.open(_name(name), slots, reads, when_held, follow, consume)
        return Reader(native, name)

    def destroy(self, name: str, *, timeout: float = 30.0) -> None:
        """Destroy a stream.

        Parameters
        ----------
        name
            Its name.
        timeout
            Longest wait for its readers in seconds; they get an error after that. ``math.inf`` is
            no limit. Ctrl-C ends the wait; the stream is then removed with its last reader.
        """
        self._native.destroy(_name(name), timeout)

    def list(self) -> Sequence[StreamInfo]:
        """Return the streams, by name."""
        return [_info(values) for values in self._native.list()]

    def facts(self) -> dict[str, int]:
        """Return sizes, free space and memory, and counters since the store was opened."""
        return self._native.facts()

    def close(self) -> None:
        """Close the store. Its file is released with the last reader, writer and block."""
        self._native.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _array(stream: str, block: _native.StreamBlock) -> NDArray[Any]:
    """The array in a block, without a copy."""
    content = np.asarray(block)
    length = int.from_bytes(content[8:12].tobytes(), "little")
    if content[:8].tobytes() != _MAGIC or length > _HEADER_MAX:
        raise StreamError(
            f"block {block.number} of stream {stream!r} is not an array: read it as batches or as "
            "bytes"
        )
    start = 12 + length
    try:
        header = ast.literal_eval(content[12:start].tobytes().decode().strip())
        shape, dtype = header["shape"], npy.descr_to_dtype(header["descr"])
        is_whole = math.prod(shape) * dtype.itemsize == len(content) - start
        is_shape = all(isinstance(length, int) and length >= 0 for length in shape)
        if header["fortran_order"] or dtype.hasobject or not is_whole or not is_shape:
            raise ValueError("another shape or dtype than its bytes have")
    except _BAD_HEADER as error:
        raise StreamError(
            f"block {block.number} of stream {stream!r} has no array that can be read ({error}): "
            "read it as bytes"
        ) from None
    array: NDArray[Any] = np.ndarray(shape, dtype, content, start)
    return array


def _header(shape: tuple[int, ...], descriptor: Any) -> bytes:
    """The bytes before an array. The values after them begin at a multiple of 64."""
    values = {"descr": descriptor, "fortran_order": False, "shape": shape}
    text = repr(values).encode()
    text += b" " * (-(len(text) + 13) % 64) + b"\n"
    if len(text) > _HEADER_MAX:
        raise TypeError(
            f"cannot append an array whose dtype and shape have {len(text)} bytes as text, more "
            f"than {_HEADER_MAX}: use fewer fields, or append an Arrow table"
        )
    return _MAGIC + len(text).to_bytes(4, "little") + text


def _descriptor(dtype: np.dtype[Any]) -> Any:
    """The dtype as text that gives the same dtype again."""
    if dtype.hasobject:
        raise TypeError(
            f"cannot append an array of {dtype}: its values are Python objects; convert it to a "
            "dtype of fixed size, or append an Arrow table"
        )
    try:
        descriptor = npy.dtype_to_descr(npy.drop_metadata(dtype))
        if npy.descr_to_dtype(descriptor) == dtype:
            return descriptor
    except ValueError:
        pass  # fields that overlap, or that are out of order
    remedy = (
        "a copy with its fields in order" if dtype.names else "a view, such as array.view('u2')"
    )
    raise TypeError(
        f"cannot append an array of {dtype}: NumPy cannot name its dtype; append {remedy}"
    )


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name is {name!r}; use a string")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name {name!a} is not UTF-8: use printable text") from None
    return name


def _count(count: object, what: str) -> int:
    try:
        value = operator.index(count)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} is {count!r}; use a whole number, such as 4") from None
    if not 1 <= value < 1 << 32:
        raise ValueError(f"{what} is {value}; use 1 to {(1 << 32) - 1}")
    return value


def _size(size: object, what: str) -> str:
    if isinstance(size, str):
        return size
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return f"{size}B"
    raise TypeError(f"{what} is {size!r}; give bytes as an int, or a string such as '50GB'")


def _lifetime(lifetime: object) -> tuple[str, float | None]:
    if isinstance(lifetime, str):
        return (lifetime, None)
    if isinstance(lifetime, datetime.timedelta):
        return ("lease", lifetime.total_seconds())
    if isinstance(lifetime, int | float) and not isinstance(lifetime, bool):
        return ("lease", float(lifetime))
    raise TypeError(f"lifetime is {lifetime!r}; use 'process', 'kept', seconds, or a timedelta")
