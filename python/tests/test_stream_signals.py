"""Streams and signals: Ctrl-C ends every wait, and handlers that return end none."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stream_support import Table, run_script, wait_for

from forebay.stream import Store


@pytest.mark.parametrize(
    "wait",
    [
        "next(store.open('open', follow=True).bytes()); next(reader)",
        "next(waiting)",
        "[full.append(bytes(4_000_000)) for _ in range(99)]",
        "store.destroy('two', timeout=600)",
    ],
)
def test_ctrl_c_ends_every_wait(tmp_path: Path, wait: str) -> None:
    body = f"""
reader = store.open('open', follow=True).bytes()
next(reader)
waiting = store.open('kept', when_held='wait', depth=1).bytes()
held = next(waiting)
with store.create('two') as two:
    two.append(b'1'); two.append(b'2')
waiting = store.open('two', when_held='wait', depth=1).bytes()
held = next(waiting)
full = store.create('full', full='wait')
main = threading.main_thread().ident
try:
    threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    {wait}
except KeyboardInterrupt:
    sys.exit(7)
"""
    done = run_script(tmp_path, body)
    assert done.returncode == 7, done.stderr


def test_ctrl_c_ends_the_wait_for_another_thread(tmp_path: Path) -> None:
    body = """
reader = store.open('open', follow=True)
blocks = reader.bytes()
next(blocks)
threading.Thread(target=lambda: next(blocks), daemon=True).start()
time.sleep(0.3)
main = threading.main_thread().ident
try:
    threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    reader.close()
except KeyboardInterrupt:
    os._exit(7)
"""
    done = run_script(tmp_path, body)
    assert done.returncode == 7, done.stderr


def test_a_handler_that_uses_the_reader_it_interrupts_gets_an_error(tmp_path: Path) -> None:
    body = """
reader = store.open('open', follow=True)
signal.signal(signal.SIGALRM, lambda *_: reader.close())
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    list(reader.bytes())
except Exception as error:
    assert 'in use by this call' in str(error), error
    reader.close()
    sys.exit(7)
"""
    done = run_script(tmp_path, body)
    assert done.returncode == 7, done.stderr


def test_signal_handlers_run_during_a_wait(store: Store) -> None:
    """A handler that returns does not end the wait."""
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    try:
        writer = store.create("live")
        reader = store.open("live", follow=True).bytes()

        def finish() -> None:
            wait_for("the signal is handled", lambda: bool(seen))
            writer.append(b"1")
            writer.seal()

        threading.Thread(target=finish).start()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert [bytes(block) for block in reader] == [b"1"]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == [signal.SIGALRM]


class Interrupted(Exception):
    """A handler raised it."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Interrupts a call that waits."""

    def handler(*_: object) -> None:
        raise Interrupted

    def run(call: Callable[[], object]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(Interrupted):
                call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, handler)
    yield run
    signal.signal(signal.SIGALRM, before)


def test_an_interrupted_reader_reads_on(
    store: Store, interrupt: Callable[[Callable[[], object]], None]
) -> None:
    writer = store.create("live")
    reader = store.open("live", follow=True)
    for call in (reader.__next__, reader.__arrow_c_schema__, reader.__arrow_c_stream__):
        interrupt(call)
    writer.append(Table(4))
    assert next(reader)["x"].tolist() == [0, 1, 2, 3]
    interrupt(reader.__next__)
    writer.append(Table(2))
    writer.seal()
    assert [batch["x"].tolist() for batch in reader] == [[0, 1]]
    assert list(reader) == []


def test_an_interrupted_destroy_ends_with_the_last_reader(
    store: Store, interrupt: Callable[[Callable[[], object]], None]
) -> None:
    with store.create("s") as writer:
        writer.append(b"1")
    reader = store.open("s")
    interrupt(lambda: store.destroy("s", timeout=float("inf")))
    assert list(store.list()) == []
    assert [bytes(block) for block in reader.bytes()] == [b"1"]
    del reader
    gc.collect()
    wait_for(
        "space is back", lambda: store.facts()["free_bytes"] == store.facts()["capacity_bytes"]
    )


STOPPED_OWNER = """
import os, sys, threading
from forebay.stream import Store
with Store(sys.argv[1], "65MiB") as store:
    with store.create("s") as stream:
        stream.append(b"block")
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("call", ["list", "open", "Store"])
def test_ctrl_c_ends_the_wait_for_a_stopped_owner(
    tmp_path: Path, interrupt: Callable[[Callable[[], object]], None], call: str
) -> None:
    command = [sys.executable, "-c", STOPPED_OWNER, str(tmp_path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "ready\n"
            store = Store(tmp_path)
            assert not store.is_owner
            owner.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, owner.pid, os.WSTOPPED)
            calls: dict[str, Callable[[], object]] = {
                "list": store.list,
                "open": lambda: store.open("s"),
                "Store": lambda: Store(tmp_path),
            }
            interrupt(calls[call])
            owner.send_signal(signal.SIGCONT)
            # The connection is whole, and no lease is left.
            assert [bytes(block) for block in store.open("s").bytes()] == [b"block"]
            wait_for("the leases have ended", lambda: next(iter(store.list())).readers == 0)
        finally:
            owner.kill()
