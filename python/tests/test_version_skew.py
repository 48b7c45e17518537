"""Nodes and clients of other versions: unknown or missing fields never raise (promise 5).

The bytes of the older side are recorded (``wire_recording``), with node version 0.1.0.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import harness
import wire_recording as wire
from harness import CONTENTS, World
from wire_recording import ERROR, GET, REPLY, Frame

import forebay

STATS, SHM_MAP, GET_SHM = 11, 32, 33
#: Of a refusal: the operation is not known.
MALFORMED = 0
#: Answer to one range of a get.
MISS = 1


def counters(body: bytes) -> list[tuple[bytes, int]]:
    """The names and values in the body of a reply to *stats*."""
    (count,), at, found = struct.unpack_from("<I", body), 4, []
    for _ in range(count):
        (length,) = struct.unpack_from("<H", body, at)
        name = body[at + 2 : at + 2 + length]
        at += 2 + length
        found.append((name, struct.unpack_from("<Q", body, at)[0]))
        at += 8
    return found


def stats_body(found: list[tuple[bytes, int]]) -> bytes:
    texts = [
        struct.pack("<H", len(name)) + name + struct.pack("<Q", value) for name, value in found
    ]
    return struct.pack("<I", len(found)) + b"".join(texts)


class OlderNode:
    """Replays the recorded replies; what was not recorded is refused, as old nodes do."""

    def __init__(self) -> None:
        pairs = [pair for conversation in wire.conversations() for pair in conversation]
        self.replies = {request.kind: reply for request, reply in reversed(pairs)}
        #: Kinds of all requests.
        self.asked: list[int] = []
        #: Bytes after the known fields, as a newer node might send them.
        self.more = b""

    def answers(self, request: Frame) -> list[Frame]:
        self.asked.append(request.kind)
        if request.kind == GET:
            # One reply per range: it is not resident.
            count = struct.unpack_from("<I", request.body, 8)[0]
            bodies = [struct.pack("<IB", index, MISS) for index in range(count)]
            return [Frame(GET | REPLY, request.id, body) for body in bodies]
        recorded = self.replies.get(request.kind)
        if recorded is None:
            text = b"unknown kind"
            body = struct.pack("<BH", MALFORMED, len(text)) + text
            return [Frame(ERROR, request.id, body)]
        body = recorded.body
        if request.kind == STATS:
            # ``capacity_bytes`` is younger than the rest.
            found = [one for one in counters(body) if one[0] != b"capacity_bytes"]
            body = stats_body(found)
        if request.kind != wire.PRESENCE:  # its last field is the rest of the body
            body += self.more
        return [Frame(recorded.kind, request.id, body)]

    def __call__(self, connection: socket.socket) -> None:
        with connection:
            while (request := wire.read_frame(connection)) is not None:
                for reply in self.answers(request):
                    connection.sendall(reply.encode())


def reads_everything(world: World, node: OlderNode, directory: Path) -> None:
    path = directory / "old.sock"
    with wire.listening(path, node):
        dataset = world.dataset(cache=str(path))
        loader = forebay.DataLoader(
            dataset, batch_size=32, shuffle=True, order="substitute", collate_fn=list
        )
        items = [item for batch in loader for item in batch]
        stats = dataset.stats()
    assert sorted(items) == sorted(CONTENTS)
    assert stats["node"] is not None
    assert "capacity_bytes" not in stats["node"]
    assert loader.stats()["items"] == len(CONTENTS)
    assert GET in node.asked or GET_SHM in node.asked, "the old node was asked"


def test_a_job_reads_with_an_older_node(world: World, tmp_path: Path) -> None:
    reads_everything(world, OlderNode(), tmp_path)


def test_a_job_ignores_the_fields_of_a_newer_node(world: World, tmp_path: Path) -> None:
    node = OlderNode()
    node.more = b"\x07\x00newer fields"
    reads_everything(world, node, tmp_path)


def test_a_node_answers_an_older_client(tmp_path: Path) -> None:
    conversation = wire.conversations()[0]
    with (
        harness.node(tmp_path / "node", "--capacity", "100MB"),
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.settimeout(30)
        client.connect(str(tmp_path / "node" / "node.sock"))
        for request, recorded in conversation:
            client.sendall(request.encode())
            reply = wire.read_frame(client)
            assert reply is not None
            assert (reply.kind, reply.id) == (recorded.kind, recorded.id)
            if reply.kind == STATS | REPLY:
                names = {name for name, _ in counters(recorded.body)}
                assert names <= {name for name, _ in counters(reply.body)}, "no counter is dropped"
            else:
                assert reply.body == recorded.body
