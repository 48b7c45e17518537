"""Frames that no client of forebay sends. The node refuses them and serves the next client."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

from hostile.node import Node
from hostile.wire_client import (
    CLAIM,
    GET,
    HEADER,
    HELLO,
    MALFORMED,
    OPEN,
    REPORT,
    UPLOAD,
    Connection,
    Refused,
    Table,
    frame,
    text,
)

BLOB = random.Random(1).randbytes(100_000)


@pytest.fixture
def victim(node: Node) -> Iterator[tuple[Connection, int]]:
    """A tenant with a resident blob, and its handle."""
    with node.tenant("blue", "victim") as connection:
        handle = connection.open(Table.of([BLOB]))
        connection.store(handle, 0, BLOB)
        yield connection, handle


def ends(connection: Connection) -> bool:
    """Whether the node refuses what was sent with `malformed`, or closes the connection."""
    try:
        connection.receive()
    except Refused as refused:
        return refused.code == MALFORMED
    except (EOFError, ConnectionError):
        return True
    return False


@pytest.mark.parametrize("length", [2_049, 65_536, (16 << 20) + (64 << 10), 2**31, 2**32 - 1])
def test_a_first_frame_longer_than_a_hello_ends_the_connection(
    node: Node, victim: tuple[Connection, int], length: int
) -> None:
    with node.stranger() as stranger:
        stranger.socket.sendall(HEADER.pack(length, HELLO, 1))
        assert ends(stranger)
    assert victim[0].get(victim[1], 0, len(BLOB)) == BLOB


@pytest.mark.parametrize(
    "body",
    [
        b"",
        struct.pack("<HH", 1, 1),
        struct.pack("<HH", 1, 1) + struct.pack("<H", 1_025) + bytes(1_025) + text(""),
        struct.pack("<HH", 1, 1) + text(b"\xff\xfe") + text(""),
        struct.pack("<HH", 1, 1) + text("job") + text("x" * 257),
        struct.pack("<HH", 1, 1) + text("job") + text("") + b"more",
    ],
)
def test_a_hello_with_a_wrong_body_ends_the_connection(
    node: Node, victim: tuple[Connection, int], body: bytes
) -> None:
    with node.stranger() as stranger:
        stranger.socket.sendall(frame(HELLO, body))
        assert ends(stranger)
    assert victim[0].get(victim[1], 0, len(BLOB)) == BLOB


def test_lists_that_promise_more_than_they_have_end_the_connection(
    node: Node, victim: tuple[Connection, int]
) -> None:
    table = Table.of([BLOB])
    huge = struct.pack("<I", 2**32 - 1)
    report = struct.pack("<IQIQQQB", 0, 1, 1, 1_000, 0, 10**8, 1)
    bodies = {
        CLAIM: [struct.pack("<I", 0) + huge, struct.pack("<II", 0, 65_537)],
        GET: [struct.pack("<II", 0, 0) + huge, struct.pack("<III", 0, 0, 3) + bytes(20)],
        OPEN: [table.namespace, table.namespace + table.id + b"x"],
        REPORT: [report + huge, report + struct.pack("<IIII", 0, 0, 0, 65_537)],
        UPLOAD: [table.namespace + table.id + struct.pack("<IIQQ", 1, 1, 2**63, 0) + huge],
    }
    for kind, each in ((kind, each) for kind, some in bodies.items() for each in some):
        with node.tenant("red") as attacker:
            attacker.open(table)
            attacker.send(kind, each)
            assert ends(attacker), f"kind {kind}: {each[:40].hex()}"
    assert victim[0].get(victim[1], 0, len(BLOB)) == BLOB


def test_random_frames_neither_stop_the_node_nor_reach_other_tenants(
    node: Node, victim: tuple[Connection, int]
) -> None:
    dice = random.Random(20)
    for _ in range(300):
        with node.tenant("red") as attacker:
            attacker.open(Table.of([BLOB]))
            attacker.socket.settimeout(0.05)
            with suppress(OSError, EOFError, Refused, TimeoutError):
                for _ in range(dice.randrange(1, 6)):
                    body = dice.randbytes(dice.choice([0, 4, 12, 20, 80, 500]))
                    # Most handles exist, so that requests get past the first check.
                    body = b"\0\0\0\0" + body[4:] if dice.random() < 0.7 else body
                    attacker.send(dice.randrange(256), body)
                attacker.receive()
    assert victim[0].get(victim[1], 0, len(BLOB)) == BLOB
    assert node.is_alive()


def test_a_request_before_hello_is_refused(node: Node) -> None:
    with node.stranger() as stranger:
        stranger.send(OPEN, bytes(48))
        assert ends(stranger)


def test_frames_cut_at_every_byte_of_the_header_are_dropped(node: Node) -> None:
    whole = frame(HELLO, struct.pack("<HH", 1, 1) + text("job") + text(""))
    for cut in range(len(whole)):
        with node.stranger() as stranger:
            stranger.socket.sendall(whole[:cut])
            stranger.socket.shutdown(socket.SHUT_WR)
            assert ends(stranger)
    assert node.is_alive()
