"""What one tenant can do to the streams of another, and to hits beside them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from hostile.node import Node, running
from hostile.wire_client import (
    LEASE,
    MALFORMED,
    TOO_MUCH,
    UNKNOWN,
    UNTIL_STOP,
    Connection,
    Refused,
)

MIB = 1 << 20
BLOCK = random.Random(8).randbytes(MIB)
#: The budget of each tenant.
BUDGET = 64 * MIB
#: Blocks that always fit into it.
FIT = 40


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node whose tenants may keep streams."""
    with running(tmp_path, of_each_tenant=('streams = "64MiB"',)) as node:
        yield node


def fill(client: Connection, name: str, lifetime: int = UNTIL_STOP, lease_ms: int = 0) -> int:
    """Write a stream until the budget is full, and seal it. Returns its blocks."""
    try:
        handle, blocks = client.create(name, lifetime, lease_ms), 0
    except Refused:
        return 0
    with suppress(Refused):
        while blocks < FIT:
            client.append(handle, blocks, BLOCK)
            blocks += 1
    client.seal(handle, blocks, blocks * MIB)
    return blocks


def keeps_its_budget(node: Node) -> None:
    """The other tenant can write what its budget promises."""
    with node.tenant("blue", "victim") as victim:
        assert fill(victim, "mine") == FIT


# Promise 6: no order of requests takes more of the device than the budget.
def test_a_name_that_is_used_again_frees_nothing(node: Node) -> None:
    with ExitStack() as held:
        attacker = held.enter_context(node.tenant("red", "attacker"))
        written = 0
        for number in range(3):
            first = held.enter_context(node.tenant("red", f"first-{number}"))
            with suppress(Refused):
                handle = first.create(f"x{number}")
                attacker.destroy(f"x{number}")
                written += fill(attacker, f"x{number}")
                first.close_stream(handle)
        assert 0 < written * MIB <= BUDGET
        assert attacker.charged() >= written * MIB
        keeps_its_budget(node)


def test_streams_that_are_read_after_their_lease_are_charged(node: Node) -> None:
    with node.tenant("red", "attacker") as attacker:
        read = 0
        for number in range(4):
            # The budget may be full, and the lease may end before the stream is opened.
            with suppress(Refused):
                blocks = fill(attacker, f"x{number}", LEASE, 1_500)
                attacker.next_block(attacker.open_stream(f"x{number}"), 0)
                read += blocks
            time.sleep(1.7)
        assert attacker.charged() >= read * MIB
        keeps_its_budget(node)


# Promise 4: names of two tenants never meet.
def test_a_tenant_finds_no_stream_of_another(node: Node) -> None:
    with node.tenant("blue") as victim, node.tenant("red") as attacker:
        fill(victim, "mine")
        for name in ("mine", "blue/mine", "../blue/mine", "/blue/mine", "red/../blue/mine"):
            for operation in (attacker.open_stream, attacker.destroy):
                with pytest.raises(Refused) as refused:
                    operation(name)
                assert refused.value.code == UNKNOWN
        assert victim.next_block(victim.open_stream("mine"), 0) == BLOCK


@pytest.mark.parametrize("name", ["", "a\0b", "\x1b[31m", "a\nb", "\u202eb", "x" * 125, "x" * 1024])
def test_names_that_deceive_are_refused(node: Node, name: str) -> None:
    with node.tenant("red") as client:
        with pytest.raises(Refused) as refused:
            client.create(name)
        assert refused.value.code == MALFORMED
        client.create("a name")


def test_readers_and_writers_are_bounded_for_each_tenant(node: Node) -> None:
    with node.tenant("red") as attacker:
        fill(attacker, "x")
        for _ in range(4):
            attacker.open_stream("x")
        with pytest.raises(Refused) as refused:
            attacker.open_stream("x")
        assert refused.value.code == TOO_MUCH
        keeps_its_budget(node)


# Promise 5: what a request costs does not depend on the streams of all clients.
def test_the_cost_of_a_request_does_not_grow_with_the_streams(tmp_path: Path) -> None:
    with (
        running(tmp_path, of_each_tenant=('streams = "1GiB"',)) as node,
        node.tenant("red") as client,
    ):

        def cost(requests: int = 2_000) -> float:
            """Processor time of a request for facts."""
            before = node.processor_time()
            for _ in range(requests):
                client.charged()
            return (node.processor_time() - before) / requests

        cost()
        few = cost()
        for number in range(110):
            client.seal(client.create(f"x{number}"), 0, 0)
        many = cost()
        assert many < 2 * few + 5e-6, f"{few * 1e6:.1f} us, then {many * 1e6:.1f} us"
