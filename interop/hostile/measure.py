"""``python -m hostile.measure``: how long a tenant's hits take beside each attack.

Prints the median and the 99th percentile of 100 kB hits while another tenant does its documented
worst, and beside processes that only burn processor time. ``--format json`` is for scripts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hostile.node import Node, running
from hostile.wire_client import EVICT, PAGE, Connection, Refused, Table

BLOB = random.Random(3).randbytes(100_000)
#: Connections of the attacking tenant.
ATTACKERS = 3
#: Pages of the attacker's table, and datasets that it reports on. The documented limit is 1,024
#: pages (2^26 rows) for all tables of a node; the victim has one, too.
PAGES, DATASETS = 1_000, 1_024

Attack = Callable[[Node, int, threading.Event], int]


def table(rows: int, chunks: int, seed: int) -> Table:
    """A table of blobs that are nowhere."""
    dice = random.Random(seed)
    return Table([dice.randbytes(32) for _ in range(rows)], [1] * rows, chunks)


def reports(node: Node, number: int, over: threading.Event) -> int:
    """Reports of 65,536 mini-batches that change the verdict on a dataset of 512 chunks."""
    with node.tenant("red", f"attacker-{number}") as attacker:
        handle, sent = attacker.open(table(512, 512, number)), 0
        while not over.is_set():
            attacker.report(handle, batches=65_536)
            sent += 1
        return sent


def page(number: int) -> bytes:
    """A page of rows of one byte each."""
    addresses = random.Random(number).randbytes(32 * PAGE)
    rows = (addresses[at : at + 32] for at in range(0, len(addresses), 32))
    return b"".join(row + b"\1\0\0\0\0\0\0\0" for row in rows)


def evictions(node: Node, number: int, over: threading.Event) -> int:
    """A table of 65 million rows: its upload, then evictions of it."""
    if number > 0:
        return 0
    with node.tenant("red", timeout=600) as attacker:
        handle, sent = attacker.upload(PAGES, page, chunks=512), 0
        while not over.is_set():
            with suppress(Refused):
                attacker.request(EVICT, struct.pack("<I", handle))
            sent += 1
        return sent


def datasets(node: Node, number: int, over: threading.Event) -> int:
    """Reports on 1,024 datasets, so that space is split between all of them."""
    sent = 0
    connections: list[tuple[Connection, int]] = []
    for first in range(number, DATASETS, ATTACKERS * 64):
        attacker = node.tenant("red", f"attacker-{number}-{first}", timeout=300)
        for at in range(first, min(first + ATTACKERS * 64, DATASETS), ATTACKERS):
            connections.append((attacker, attacker.open(table(8, 8, at))))
    while not over.is_set():
        for attacker, handle in connections:
            with suppress(Refused):
                attacker.report(handle, batches=512, incarnation=sent + 1)
            sent += 1
            if over.is_set():
                break
    return sent


def hellos(node: Node, _: int, over: threading.Event) -> int:
    """Connections that are opened and dropped."""
    sent = 0
    while not over.is_set():
        with suppress(Refused, EOFError, OSError):
            node.tenant("red").close()
        sent += 1
    return sent


ATTACKS: dict[str, Attack] = {
    "reports of 65,536 mini-batches": reports,
    "upload, evictions of 65 M rows": evictions,
    "reports on 1,024 datasets": datasets,
    "hellos": hellos,
}


@contextmanager
def attacked(node: Node, attack: Attack) -> Iterator[list[int]]:
    """Attack while the block runs; the list has the number of requests of each attacker then."""
    over, sent = threading.Event(), list[int]()
    threads = [
        threading.Thread(target=lambda at=at: sent.append(attack(node, at, over)))
        for at in range(ATTACKERS)
    ]
    for thread in threads:
        thread.start()
    try:
        time.sleep(3)
        yield sent
    finally:
        over.set()
        for thread in threads:
            thread.join()


def burn() -> None:
    """Use one core."""
    while True:
        pass


@contextmanager
def burning(processes: int) -> Iterator[None]:
    """Run processes that burn processor time."""
    started = [multiprocessing.Process(target=burn, daemon=True) for _ in range(processes)]
    for each in started:
        each.start()
    try:
        yield
    finally:
        for each in started:
            each.kill()


def victim(socket: str, seconds: float, answer: multiprocessing.SimpleQueue[list[float]]) -> None:
    """Request hits, in a process of its own, and send how long each took."""
    with Connection(Path(socket)).hello("victim", "blue-" + "b" * 40) as connection:
        handle = connection.open(Table.of([BLOB]))
        waits, end = list[float](), time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            assert connection.get(handle, 0, len(BLOB)) == BLOB
            waits.append(time.monotonic() - began)
            time.sleep(0.002)
    answer.put(waits)


def hits(node: Node, seconds: float) -> list[float]:
    """How long each hit of the victim took, ascending."""
    answer: multiprocessing.SimpleQueue[list[float]] = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=victim, args=(str(node.socket), seconds, answer))
    process.start()
    waits = answer.get()
    process.join()
    return sorted(waits)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hostile.measure", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of each row")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    arguments = parser.parse_args()
    rows = []

    def row(name: str, waits: list[float], requests: int | None = None) -> None:
        rows.append(
            {
                "beside": name,
                "hits": len(waits),
                "median_ms": round(1e3 * waits[len(waits) // 2], 2),
                "p99_ms": round(1e3 * waits[len(waits) * 99 // 100], 2),
                "max_ms": round(1e3 * waits[-1], 2),
                "requests": requests,
            }
        )
        print(f"measured: {name}", file=sys.stderr)

    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as node:
        with node.tenant("blue") as writer:
            writer.store(writer.open(Table.of([BLOB])), 0, BLOB)
        row("nothing", hits(node, arguments.seconds))
        for processes in (1, 2, ATTACKERS):
            with burning(processes):
                row(f"{processes} busy processes", hits(node, arguments.seconds))
        for name, attack in ATTACKS.items():
            longer = 12 if attack is evictions else 1  # the upload takes a minute or two
            with attacked(node, attack) as sent:
                waits = hits(node, longer * arguments.seconds)
            row(name, waits, sum(sent))
    if arguments.format == "json":
        print(json.dumps(rows, indent=1))
        return
    print(f"{'BESIDE':<34} {'HITS':>6} {'MEDIAN':>10} {'P99':>10} {'MAX':>10} {'REQUESTS':>9}")
    for each in rows:
        times = [f"{each[key]:.2f} ms" for key in ("median_ms", "p99_ms", "max_ms")]
        requests = "" if each["requests"] is None else str(each["requests"])
        figures = " ".join(f"{figure:>10}" for figure in times)
        print(f"{each['beside']:<34} {each['hits']:>6} {figures} {requests:>9}")


if __name__ == "__main__":
    main()
