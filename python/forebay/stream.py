"""Streams: data that is written once and read back in order, at device speed, with little memory.

``Store`` keeps streams in one file on local flash. ``Writer`` appends tables, arrays or bytes;
``Reader`` hands them out again, read ahead into memory that the store took when it was opened.
Tables travel by Arrow's PyCapsule interface, so pyarrow, Polars, DuckDB and pandas write and read
them; none of these is needed to import this module. Opening a store starts one thread, and another
when the first process borrows; importing this module starts none.
"""

from __future__ import annotations

import datetime
import io
import math
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
_MAGIC = npy.magic(2, 0)
#: Longest header of an array that is read: NumPy's own limit.
_HEADER_MAX = 10_000


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
        several blocks.

        Parameters
        ----------
        data
            An object with ``__arrow_c_stream__`` or ``__arrow_c_array__`` (a table or a record
            batch of pyarrow, Polars, DuckDB or pandas, or a ``Reader``), an array of NumPy, or
            anything with the buffer protocol.
        """
        if hasattr(data, "__arrow_c_stream__"):
            self._begin("tables")
            self._native.append_stream(data.__arrow_c_stream__())
        elif hasattr(data, "__arrow_c_array__"):
            self._begin("tables")
            self._native.append_array(*data.__arrow_c_array__())
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

    def _begin(self, kind: str) -> None:
        if self._kind not in (None, kind):
            raise StreamError(
                f"stream {self._name!r} has {self._kind}: write {kind} to another stream"
            )
        self._kind = kind

    def _append_array(self, array: NDArray[Any]) -> None:
        dtype = array.dtype
        descriptor = _descriptor(dtype)
        self._begin("arrays")
        # NumPy says that None equals float64.
        if self._dtype is not None and self._dtype != dtype:
            raise StreamError(
                f"stream {self._name!r} has arrays of {self._dtype}, but this one has {dtype}: "
                "use one dtype per stream"
            )
        self._dtype = dtype
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
            self._append_part(array, descriptor)
        else:
            for first in range(0, rows, step):
                self._append_part(array[first : first + step], descriptor)

    def _append_part(self, array: NDArray[Any], descriptor: Any) -> None:
        header = np.frombuffer(_header(array.shape, descriptor), np.uint8)
        flat = np.ascontiguousarray(array).reshape(-1)
        values = flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)
        self._native.append_block([header, values])

    def _append_bytes(self, view: memoryview) -> None:
        if not view.c_contiguous:
            raise TypeError("cannot append a buffer that is not contiguous: append bytes(buffer)")
        self._begin("bytes")
        flat = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
        length = self._native.block_length
        for first in range(0, max(1, len(flat)), length):
            self._native.append_block([flat[first : first + length]])


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
        self._native = _native.StreamStore(os.fspath(directory), size, _size(memory, "memory"))

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
        for key, value in {"depth": depth, "in_flight": in_flight}.items():
            if value is not None and not 1 <= value < 1 << 32:
                raise ValueError(f"{key} is {value}; use 1 or more")
        reads = depth if in_flight is None else in_flight
        native = self._native.open(_name(name), depth, reads, when_held, follow, consume)
        return Reader(native, name)

    def destroy(self, name: str, *, timeout: float = 30.0) -> None:
        """Destroy a stream.

        Parameters
        ----------
        name
            Its name.
        timeout
            Longest wait for its readers in seconds; they get an error after that.
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
        header = io.BytesIO(content[8:start].tobytes())
        shape, fortran_order, dtype = npy.read_array_header_2_0(header, _HEADER_MAX)
        is_whole = math.prod(shape) * dtype.itemsize == len(content) - start
        if fortran_order or dtype.hasobject or not is_whole or min(shape, default=0) < 0:
            raise ValueError("another shape or dtype than its bytes have")
    except ValueError as error:
        raise StreamError(
            f"block {block.number} of stream {stream!r} has no array that can be read ({error}): "
            "read it as bytes"
        ) from None
    array: NDArray[Any] = np.ndarray(shape, dtype, content, start)
    return array


def _header(shape: tuple[int, ...], descriptor: Any) -> bytes:
    """The bytes before an array."""
    header = io.BytesIO()
    values = {"descr": descriptor, "fortran_order": False, "shape": shape}
    npy.write_array_header_2_0(header, values)
    return header.getvalue()


def _descriptor(dtype: np.dtype[Any]) -> Any:
    """The dtype as text that gives the same dtype again."""
    if dtype.hasobject:
        raise TypeError(
            f"cannot append an array of {dtype}: its values are Python objects; convert it to a "
            "dtype of fixed size, or append an Arrow table"
        )
    descriptor = npy.dtype_to_descr(npy.drop_metadata(dtype))
    if npy.descr_to_dtype(descriptor) != dtype:
        raise TypeError(
            f"cannot append an array of {dtype}: NumPy cannot name its dtype; append a view of it, "
            "such as array.view('u2')"
        )
    return descriptor


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name is {name!r}; use a string")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name {name!a} is not UTF-8: use printable text") from None
    return name


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
