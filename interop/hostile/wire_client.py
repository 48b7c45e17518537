"""A second implementation of the wire protocol, written from ``docs/reference/wire.md``.

It shares no code with forebay. It does what a client may do, and what a hostile one can do: every
frame can be sent as raw bytes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import blake3
from digest_format import derived, namespace_id, public_key

HEADER = struct.Struct("<IB3xQ")
REPLY = 0x80
REFUSAL = 0xFF

HELLO, OPEN, PROVE, UPLOAD, PRESENCE, GET, CLAIM, RENEW, RELEASE, PUT, STATS = range(1, 12)
REPORT, LEAVE, EXPLAIN, EVICT = 13, 14, 15, 16
FREE_SPACE, STREAM = 21, 26

MALFORMED, UNKNOWN, WRONG_BYTES, NOT_CLAIMED, NO_SPACE, TOO_MUCH, IDENTITY = 0, 2, 3, 4, 5, 6, 10
HIT, MISS = 0, 1
GRANTED, HELD, PRESENT, TOO_MANY, UNCACHED = range(5)
MORE, STORED = 0, 1
#: Lifetimes of streams.
UNTIL_STOP, LEASE, KEPT = range(3)

#: Rows of a page of *upload*.
PAGE = 65_536


class Refused(Exception):
    """The node answered with a refusal."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"refusal {code}: {text}")
        self.code = code


class Reply(NamedTuple):
    """A frame from the node."""

    kind: int
    id: int
    body: bytes


def frame(kind: int, body: bytes, number: int = 1) -> bytes:
    """A frame with this kind, id and body."""
    return HEADER.pack(len(body), kind, number) + body


def text(value: str | bytes) -> bytes:
    """A text: its length and UTF-8."""
    encoded = value.encode() if isinstance(value, str) else value
    return struct.pack("<H", len(encoded)) + encoded


def ordinals(values: Iterable[int]) -> bytes:
    """A list of ordinals of blobs."""
    listed = list(values)
    return struct.pack(f"<I{len(listed)}Q", len(listed), *listed)


@dataclass(frozen=True)
class Table:
    """The blobs of a dataset in the namespace ``public``."""

    addresses: list[bytes]
    lengths: list[int]
    chunks: int = 1
    partitions: int = 1

    @classmethod
    def of(cls, contents: Iterable[bytes], chunks: int = 1) -> Table:
        """The table of these blobs."""
        listed = list(contents)
        addresses = [blake3.blake3(each, key=public_key()).digest() for each in listed]
        return cls(addresses, [len(each) for each in listed], chunks)

    @property
    def namespace(self) -> bytes:
        """The id of ``public``."""
        return bytes.fromhex(namespace_id(public_key()))

    @property
    def rows(self) -> list[bytes]:
        """Address and length of each blob."""
        pairs = zip(self.addresses, self.lengths, strict=True)
        return [address + struct.pack("<Q", length) for address, length in pairs]

    @property
    def id(self) -> bytes:
        """The dataset id."""
        shape = struct.pack("<II", self.chunks, self.partitions)
        return derived("forebay 2026 dataset id v1", b"".join(self.rows) + shape)

    def proof(self, nonce: bytes) -> bytes:
        """What shows that the caller holds the table."""
        key = derived("forebay names bound to a namespace v1", self.namespace)
        hasher = blake3.blake3(key=nonce)
        for address, length in zip(self.addresses, self.lengths, strict=True):
            hasher.update(blake3.blake3(address, key=key).digest())
            hasher.update(struct.pack("<Q", length))
        return hasher.digest()


class Connection:
    """A connection on the node's Unix socket, or to a port of this machine."""

    def __init__(self, endpoint: Path | int, timeout: float = 30.0) -> None:
        if isinstance(endpoint, int):
            self.socket = socket.create_connection(("127.0.0.1", endpoint), timeout)
        else:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(timeout)
            self.socket.connect(str(endpoint))
        self._next = 1

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both directions."""
        self.socket.close()

    def send(self, kind: int, body: bytes = b"") -> int:
        """Send a request and return its id."""
        self._next += 1
        self.socket.sendall(frame(kind, body, self._next))
        return self._next

    def receive(self) -> Reply:
        """The next frame. Raises :class:`Refused` and, at the end, :class:`EOFError`."""
        length, kind, number = HEADER.unpack(self._exactly(HEADER.size))
        body = self._exactly(length)
        if kind == REFUSAL:
            raise Refused(body[0], body[3:].decode(errors="replace"))
        return Reply(kind, number, body)

    def request(self, kind: int, body: bytes = b"", answer: int | None = None) -> bytes:
        """Send a request and return the body of its reply, which may be that of another kind."""
        number = self.send(kind, body)
        reply = self.receive()
        assert (reply.kind, reply.id) == ((answer or kind) | REPLY, number), reply
        return reply.body

    def hello(self, job: str = "job", token: str = "") -> Connection:
        """Greet as this job."""
        self.request(HELLO, struct.pack("<HH", 1, 3) + text(job) + text(token))
        return self

    def open(self, table: Table) -> int:
        """Open a dataset, with a proof or by uploading its table, and return its handle."""
        answer = self.request(OPEN, table.namespace + table.id)
        if answer[0] == 0:
            reply = self.request(PROVE, table.id + table.proof(answer[1:33]))
            return int.from_bytes(reply[:4], "little")
        rows = table.rows
        shape = struct.pack("<IIQ", table.chunks, table.partitions, len(rows))
        for first in range(0, len(rows), PAGE):
            page = rows[first : first + PAGE]
            body = table.namespace + table.id + shape + struct.pack("<QI", first, len(page))
            is_last = first + PAGE >= len(rows)
            reply = self.request(UPLOAD, body + b"".join(page), PROVE if is_last else UPLOAD)
        return int.from_bytes(reply[:4], "little")

    def upload(self, pages: int, page: Callable[[int], bytes], chunks: int = 1) -> int:
        """Upload a table in `public` page by page, which need not fit into memory.

        ``page`` returns the rows of a page; every page has ``PAGE`` rows.
        """
        hasher = blake3.blake3(derive_key_context="forebay 2026 dataset id v1")
        for number in range(pages):
            hasher.update(page(number))
        dataset = hasher.update(struct.pack("<II", chunks, 1)).digest()
        head = bytes.fromhex(namespace_id(public_key())) + dataset
        head += struct.pack("<IIQ", chunks, 1, pages * PAGE)
        for number in range(pages):
            body = head + struct.pack("<QI", number * PAGE, PAGE) + page(number)
            reply = self.request(UPLOAD, body, PROVE if number == pages - 1 else UPLOAD)
        return int.from_bytes(reply[:4], "little")

    def claim(self, handle: int, blobs: list[int]) -> list[int]:
        """Claim blobs."""
        answers = self.request(CLAIM, struct.pack("<I", handle) + ordinals(blobs))
        return list(answers[4:])

    def renew(self, handle: int, blob: int, fetched: int) -> int:
        """Renew a claim with this progress."""
        body = struct.pack("<IIQQ", handle, 1, blob, fetched)
        return self.request(RENEW, body)[4]

    def put(self, handle: int, blob: int, content: bytes, offset: int = 0) -> int:
        """Write a part of a claimed blob."""
        return self.request(PUT, struct.pack("<IQQ", handle, blob, offset) + content)[0]

    def ask(self, handle: int, ranges: list[tuple[int, int, int]], wait: int = 0) -> int:
        """Send a *get* and leave the replies on the socket."""
        listed = b"".join(struct.pack("<QQI", *each) for each in ranges)
        return self.send(GET, struct.pack("<III", handle, wait, len(ranges)) + listed)

    def get(self, handle: int, blob: int, length: int, wait: int = 0) -> bytes | None:
        """The first bytes of a blob; ``None`` if it is not there."""
        self.ask(handle, [(blob, 0, length)], wait)
        body = self.receive().body
        return body[5:] if body[4] == HIT else None

    def store(self, handle: int, blob: int, content: bytes) -> None:
        """Claim a blob and write it."""
        assert self.claim(handle, [blob]) == [GRANTED]
        assert self.put(handle, blob, content) == STORED

    def report(self, handle: int, batches: int = 0, incarnation: int = 1) -> bytes:
        """Report on a dataset, with this number of mini-batches that alternate in speed."""
        one = struct.pack("<BII", 2, 50_000, 40_000) + struct.pack("<BII", 0, 1_000, 0)
        fixed = struct.pack("<IQIQQQB", handle, incarnation, 1, 1_000, 0, 10**8, 1)
        lists = struct.pack("<III", 0, 0, 0)
        listed = (one * ((batches + 1) // 2))[: 9 * batches]
        return self.request(REPORT, fixed + lists + struct.pack("<I", batches) + listed)

    def evict(self, handle: int) -> int:
        """Evict a dataset and return the bytes that were freed."""
        return int.from_bytes(self.request(EVICT, struct.pack("<I", handle)), "little")

    def stream(self, operation: int, fields: bytes) -> bytes:
        """A request about streams. Returns the fields of the answer."""
        return self.request(STREAM, bytes([operation]) + fields)[1:]

    def create(self, name: str, lifetime: int = UNTIL_STOP, lease_ms: int = 0) -> int:
        """Create a stream and return its handle."""
        answer = self.stream(0, text(name) + struct.pack("<BQ", lifetime, lease_ms))
        return int.from_bytes(answer[:4], "little")

    def append(self, handle: int, block: int, content: bytes) -> None:
        """Append a block to a stream."""
        self.stream(1, struct.pack("<IQ", handle, block) + content)

    def seal(self, handle: int, blocks: int, size: int) -> None:
        """Seal a stream."""
        self.stream(2, struct.pack("<IQQ", handle, blocks, size))

    def open_stream(self, name: str) -> int:
        """Open a stream for reading and return its handle."""
        return int.from_bytes(self.stream(3, text(name) + bytes(1))[:4], "little")

    def next_block(self, handle: int, block: int) -> bytes:
        """The next block of a stream."""
        return self.stream(4, struct.pack("<IQ", handle, block))

    def close_stream(self, handle: int) -> None:
        """Close a stream."""
        self.stream(5, struct.pack("<I", handle))

    def destroy(self, name: str) -> None:
        """Destroy a stream."""
        self.stream(6, text(name))

    def charged(self) -> int:
        """Bytes charged to this client's budget for streams."""
        return int(struct.unpack_from("<QQQQI", self.stream(8, b""))[2])

    def stats(self) -> dict[str, int]:
        """The node's counters."""
        body = self.request(STATS)
        found, at = dict[str, int](), 4
        for _ in range(int.from_bytes(body[:4], "little")):
            (length,) = struct.unpack_from("<H", body, at)
            name = body[at + 2 : at + 2 + length].decode()
            (found[name],) = struct.unpack_from("<Q", body, at + 2 + length)
            at += 2 + length + 8
        return found

    def _exactly(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            part = self.socket.recv(min(length - len(parts), 1 << 20))
            if not part:
                raise EOFError("the node closed the connection")
            parts += part
        return bytes(parts)
