"""Connections and memory that one client can take from others."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from hostile.node import CONNECTIONS, Node, running
from hostile.wire_client import (
    HEADER,
    HELLO,
    PUT,
    Connection,
    Refused,
    Table,
)

MIB = 1 << 20
BLOB = random.Random(2).randbytes(4 * MIB)
#: Ranges of `BLOB` that one slow reader requests: more than any connection may have waiting.
GREED = 64


def ask_without_reading(connection: Connection, handle: int) -> None:
    """Request more than the node may keep waiting for one connection, and read nothing."""
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.ask(handle, [(0, 0, len(BLOB))] * GREED)


def stored(node: Node) -> Table:
    """A dataset with one resident blob."""
    table = Table.of([BLOB])
    with node.owner() as connection:
        connection.store(connection.open(table), 0, BLOB)
    return table


# Promise 6: memory and connections are bounded, and one tenant cannot take those of others.
def test_half_closed_connections_count_until_both_directions_have_ended(node: Node) -> None:
    table = stored(node)
    with ExitStack() as held:
        count = 0
        for number in range(CONNECTIONS):
            with suppress(Refused, EOFError, ConnectionError, TimeoutError):
                connection = held.enter_context(node.tenant("red", f"job-{number}", 5))
                handle = connection.open(table)
                ask_without_reading(connection, handle)
                connection.socket.shutdown(socket.SHUT_WR)
                count += 1
            # The owner and the other tenant are served at every moment.
            if number % 16 == 0 or number == CONNECTIONS - 1:
                with node.owner() as owner, node.tenant("blue") as blue:
                    assert owner.get(owner.open(table), 0, 1000) == BLOB[:1000]
                    assert blue.get(blue.open(table), 0, 1000) == BLOB[:1000]
        assert count >= 2, "the attack did not begin"
        assert node.owner().stats()["connections_open"] <= CONNECTIONS


def test_a_tenant_has_at_most_half_of_the_connections(node: Node) -> None:
    with ExitStack() as held:
        opened = 0
        for number in range(CONNECTIONS):
            with suppress(Refused, EOFError, ConnectionError):
                held.enter_context(node.tenant("red", f"job-{number}"))
                opened += 1
        assert opened == CONNECTIONS // 2
        held.enter_context(node.tenant("blue"))
        held.enter_context(node.owner())


def test_peers_without_a_hello_cost_no_memory(node: Node) -> None:
    before = node.resident()
    with ExitStack() as held:
        for _ in range(CONNECTIONS):
            stranger = held.enter_context(node.stranger())
            with suppress(ConnectionError, BrokenPipeError):
                stranger.socket.sendall(HEADER.pack(2_048, HELLO, 1) + bytes(2_047))
        for _ in range(CONNECTIONS):
            stranger = held.enter_context(node.stranger())
            stranger.socket.settimeout(1)
            with suppress(ConnectionError, BrokenPipeError, TimeoutError):
                stranger.socket.sendall(HEADER.pack(16 * MIB, HELLO, 1))
                stranger.socket.sendall(bytes(4 * MIB))
        grown = node.resident() - before
        assert grown <= 8 * MIB, f"{grown / MIB:.1f} MiB"
        assert node.is_alive()


@contextmanager
def memory_limit(size: int) -> Iterator[Path]:
    """A cgroup with this limit; the test is skipped where none can be made."""
    roots = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")]
    for root in roots:
        group = root / f"forebay-hostile-{os.getpid()}"
        name = "memory.max" if root == roots[0] else "memory.limit_in_bytes"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(size))
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                try:
                    group.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)
        return
    pytest.skip("no cgroup with a memory limit can be made here")


def read_nothing(connection: Connection, table: Table) -> None:
    """Request much and read nothing."""
    ask_without_reading(connection, connection.open(table))


def send_half_a_put(connection: Connection, table: Table) -> None:
    """Announce the longest request, send most of it and then nothing."""
    connection.open(table)
    connection.socket.settimeout(0.1)
    connection.socket.sendall(HEADER.pack(16 * MIB, PUT, 9) + bytes(15 * MIB))


@pytest.mark.parametrize("attack", [read_nothing, send_half_a_put])
def test_slow_clients_do_not_exhaust_a_container_of_1_gib(
    tmp_path: Path, attack: Callable[[Connection, Table], None]
) -> None:
    with memory_limit(1 << 30) as group:
        into = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
        with (
            running(tmp_path, connections=512, before=into) as node,
            ExitStack() as held,
        ):
            table = stored(node)
            peak, clients = 0, 0
            for number in range(200):
                with suppress(Refused, EOFError, ConnectionError, TimeoutError):
                    name = ("red", "blue")[number % 2]
                    client = held.enter_context(node.tenant(name, f"job-{number}", 5))
                    clients += 1
                    attack(client, table)
                if number % 20 == 0:
                    peak = max(peak, node.resident())
            for _ in range(20):
                time.sleep(0.1)
                peak = max(peak, node.resident())
            assert node.is_alive()
            assert clients >= 100, "the attack did not begin"
            assert peak <= 900 * 10**6, f"{peak / 1e6:.0f} MB"


def test_an_upload_of_more_rows_than_memory_is_refused_before_it_is_stored(node: Node) -> None:
    table = Table.of([b"x"])
    with node.tenant("red") as attacker:
        before = node.resident()
        shape = struct.pack("<IIQQI", 1, 1, 2**40, 0, 1)
        with pytest.raises((Refused, EOFError)):
            attacker.request(4, table.namespace + bytes(32) + shape + table.rows[0])
        assert node.resident() - before <= 8 * MIB
    assert node.is_alive()


def test_a_node_with_an_open_connection_is_not_idle(node: Node) -> None:
    config = node.directory / "node.toml"
    with node.tenant("red") as connection:
        config.write_text('idle_exit = "0s"\n' + config.read_text())
        node.process.send_signal(signal.SIGHUP)
        # The node looks once a second.
        time.sleep(2.5)
        assert connection.stats()["connections_open"] == 1
    assert node.process.wait(timeout=30) == 0
