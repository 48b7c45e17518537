"""A second implementation of the digest format, written from ``docs/reference/digest-format.md``.

It reads a digest and verifies every checksum and every rule of that page. It shares no code with
forebay: Arrow is read by pyarrow, BLAKE3 is the ``blake3`` package.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blake3
import blake3_nodes
import pyarrow as pa
import pyarrow.ipc

MAGIC = b"ARROW1"
FIRST_MESSAGE = 64
FORMATS = ("1", "2")
MESSAGE_MAX = 64 << 20
BLOB_LENGTH_MAX = 1 << 48
ITEM_LENGTH_MAX = 1 << 36
DATASET_LENGTH_MAX = 1 << 60
UNITS_MAX = 1 << 16
BATCH_BLOBS = 16_384
LEAF_MIN, LEAF_MAX = 1 << 10, 1 << 20
LEAVES_MAX = 1 << 16


class DigestError(Exception):
    """The file is not a digest, or breaks a rule of the format."""


def require(holds: bool, rule: str) -> None:
    """Raise unless a rule of the format holds."""
    if not holds:
        raise DigestError(rule)


def derived(context: str, data: bytes) -> bytes:
    """BLAKE3 in derive-key mode."""
    return blake3.blake3(data, derive_key_context=context).digest()


def public_key() -> bytes:
    """The key of the namespace ``public``."""
    return derived("forebay 2026 public namespace key v1", b"")


def namespace_id(key: bytes) -> str:
    """The id of the namespace with this key, as ``forebay.namespace`` has it."""
    return derived("forebay 2026 namespace id v1", key)[:16].hex()


@dataclass(frozen=True)
class Message:
    """One encapsulated message of the file."""

    offset: int
    metadata: bytes
    """The flatbuffer with its padding, without the eight bytes before it."""
    body: bytes

    @property
    def header_length(self) -> int:
        """Bytes before the body, as a block counts them."""
        return 8 + len(self.metadata)

    @property
    def end(self) -> int:
        """The first byte after the body."""
        return self.offset + self.header_length + len(self.body)


def messages(data: bytes, end: int) -> Iterator[Message]:
    """The schema and the record batches, which follow each other without gaps."""
    offset = FIRST_MESSAGE
    while True:
        require(offset + 8 <= end, "a message leaves the file")
        marker, length = struct.unpack_from("<II", data, offset)
        require(marker == 0xFFFFFFFF, "a message does not begin with its marker")
        if length == 0:
            return
        require(length <= MESSAGE_MAX, "a message is longer than 64 MiB")
        require(offset + 8 + length <= end, "a message leaves the file")
        try:
            body = pa.ipc.read_message(pa.py_buffer(data)[offset:end]).body
        except (pa.ArrowException, OSError) as error:
            raise DigestError("a message is unreadable") from error
        body = body.to_pybytes() if body is not None else b""
        message = Message(offset, data[offset + 8 : offset + 8 + length], body)
        require(message.end <= end, "a message leaves the file")
        yield message
        offset = message.end


@dataclass(frozen=True)
class Digest:
    """A digest whose checksums match."""

    metadata: dict[str, str]
    batches: list[list[dict[str, Any]]]

    def blobs(self) -> Iterator[dict[str, Any]]:
        """All rows, in order."""
        for batch in self.batches:
            yield from batch

    def number(self, key: str) -> int:
        """A decimal number of the schema's metadata."""
        text = self.metadata[f"forebay.{key}"]
        require(text.isascii() and text.isdecimal(), f"`{key}` is not a decimal number")
        return int(text)

    def chunk_of(self, start: int) -> int:
        """The chunk of a blob that begins at this byte of the dataset."""
        chunks, partitions = self.number("chunks"), self.number("partitions")
        units, total = chunks * partitions, self.number("bytes")
        unit = min(start * units // total, units - 1) if total else 0
        return (unit % chunks + unit // chunks) % chunks

    def dataset_id(self) -> str:
        """The dataset id, computed from the rows."""
        hasher = blake3.blake3(derive_key_context="forebay 2026 dataset id v1")
        for blob in self.blobs():
            hasher.update(blob["address"] + struct.pack("<Q", blob["length"]))
        hasher.update(struct.pack("<II", self.number("chunks"), self.number("partitions")))
        return hasher.hexdigest()

    def check_content(self, key: bytes, read: Callable[[str, int, int], bytes]) -> None:
        """Check every address. ``read`` returns a range of an object."""
        for blob in self.blobs():
            parts = blob["parts"]
            content = [read(part["object"], part["offset"], part["length"]) for part in parts]
            address = blake3.blake3(b"".join(content), key=key).digest()
            require(address == blob["address"], "a blob does not hash to its address")

    def check_slice(self, key: bytes, blob: dict[str, Any], start: int, data: bytes) -> None:
        """Check bytes of a blob, from ``start`` on, against its tree: leaves that are whole."""
        leaf, nodes = blob["leaf"], blob["tree"]
        root = blake3_nodes.merge(key, nodes, blake3_nodes.ROOT)
        require(root == blob["address"], "a tree is not that of its blob's address")
        end = start + len(data)
        require(start % leaf == 0, "a slice does not begin with a leaf")
        require(end % leaf == 0 or end == blob["length"], "a slice does not end with a leaf")
        for at in range(0, len(data), leaf):
            node = blake3_nodes.leaf_node(key, data[at : at + leaf], start + at)
            require(node == nodes[(start + at) // leaf], "a leaf has another node")


def read(path: Path) -> Digest:
    """Open a digest and verify everything but the content of its blobs."""
    data = path.read_bytes()
    require(data.startswith(MAGIC), "it does not begin as an Arrow file")
    require(data.endswith(MAGIC) and len(data) > FIRST_MESSAGE + 10, "it is cut short")
    trailer = len(data) - 10
    (footer_length,) = struct.unpack_from("<i", data, trailer)
    require(0 <= footer_length <= trailer - FIRST_MESSAGE, "its footer leaves the file")
    try:
        file = pa.ipc.open_file(pa.py_buffer(data))
        schema, *batches = messages(data, trailer - footer_length)
        first = pa.ipc.read_schema(pa.py_buffer(data)[FIRST_MESSAGE : schema.end])
    except (pa.ArrowException, OSError) as error:
        raise DigestError("it is not an Arrow file") from error
    footer = {key.decode(): value.decode() for key, value in file.metadata.items()}
    metadata = {key.decode(): value.decode() for key, value in file.schema.metadata.items()}
    require(metadata.get("forebay.format") in FORMATS, "it has another format")
    has_trees = metadata["forebay.format"] != "1"
    require(("tree" in file.schema.names) == has_trees, "its columns are of another format")
    require(first.equals(file.schema, check_metadata=True), "its two schemas differ")
    require(len(batches) == file.num_record_batches, "its footer lists other batches")

    content = blake3.blake3()
    hasher = blake3.blake3(derive_key_context="forebay 2026 digest metadata v1")
    hasher.update(schema.metadata)
    for message in batches:
        content.update(message.body)
        hasher.update(message.metadata)
        block = (message.offset, message.header_length, len(message.body))
        hasher.update(struct.pack("<qiq", *block))
    hasher.update(footer["forebay.content"].encode())
    require(content.hexdigest() == footer["forebay.content"], "its content has another checksum")
    require(hasher.hexdigest() == footer["forebay.metadata"], "its metadata has another checksum")
    # Only now: pyarrow trusts the offsets in a batch.
    rows = [file.get_batch(at) for at in range(file.num_record_batches)]
    for batch in rows:
        batch.validate(full=True)
    digest = Digest(metadata, [batch.to_pylist() for batch in rows])
    check_rows(digest)
    return digest


def check_rows(digest: Digest) -> None:
    """Check every row against the rules of the page."""
    units = digest.number("chunks") * digest.number("partitions")
    require(1 <= units <= UNITS_MAX, "its chunking is impossible")
    require(digest.number("bytes") <= DATASET_LENGTH_MAX, "it is longer than 1 EiB")
    start = items = blobs = 0
    last = b""
    for batch in digest.batches:
        require(0 < len(batch) <= BATCH_BLOBS, "a batch is empty or too long")
    for blob in digest.blobs():
        require(blob["start"] == start, "a blob does not begin where the last one ends")
        require(blob["length"] <= BLOB_LENGTH_MAX, "a blob is too long")
        length = 0
        for part in blob["parts"]:
            key = part["object"].encode()
            require(last <= key, "the rows are out of order")
            last = key
            steps = part["object"].split("/")
            require(not {"", ".", ".."} & set(steps), "a key has a forbidden step")
            require(part["offset"] + part["length"] <= BLOB_LENGTH_MAX, "a part ends too late")
            length += part["length"]
        require(length == blob["length"], "a blob is not as long as its parts")
        require(len(blob["items"]) > 0, "a blob has no item")
        for item in blob["items"]:
            require(item["length"] <= ITEM_LENGTH_MAX, "an item is too long")
            require(item["offset"] + item["length"] <= length, "an item leaves its blob")
        leaf, nodes = blob.get("leaf", 0), blob.get("tree", [])
        if leaf or nodes:
            is_length = leaf & (leaf - 1) == 0 and LEAF_MIN <= leaf <= LEAF_MAX
            require(is_length, "the length of a leaf is no power of two in its limits")
            require(len(nodes) == -(-length // leaf), "a tree has not one node for each leaf")
            require(2 <= len(nodes) <= LEAVES_MAX, "a tree has too many leaves or too few")
        start += length
        items += len(blob["items"])
        blobs += 1
    totals = {"blobs": blobs, "items": items, "bytes": start}
    require(all(digest.number(key) == total for key, total in totals.items()), "its totals differ")
    require(digest.dataset_id() == digest.metadata["forebay.dataset"], "it has another dataset id")
