"""Streams in several processes and threads: forks, borrowers, the end of an interpreter."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_support import CAPACITY, DEADLINE, Table, is_view, run_script, wait_for

from forebay.stream import Store, StreamError


def forked(run: Callable[[], bool]) -> bool:
    """Whether ``run`` returns True in a forked child that then exits as Python does."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, b"right" if run() else b"wrong")
            gc.collect()
            sys.exit(0)
        except SystemExit:
            os._exit(0)
        except BaseException as error:
            os.write(write, repr(error).encode())
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        result = pipe.read()
    _, status = os.waitpid(child, 0)
    assert result in (b"right", b"wrong"), result
    return result == b"right" and status == 0


def test_a_forked_child_keeps_blocks_and_drops_nothing_of_its_parent(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", CAPACITY)
    with store.create("arrays") as writer:
        for number in range(12):
            writer.append(np.full(100_000, number))
    kept: dict[str, Any] = {
        "store": store,
        "reader": store.open("arrays"),
        "writer": store.create("open"),
    }
    arrays = kept["reader"].arrays()
    held = [next(arrays), next(arrays)]

    def in_child() -> bool:
        right = (held[1] == 1).all()
        calls: list[Callable[[], object]] = [
            lambda: next(kept["reader"].bytes()),
            lambda: kept["writer"].append(b"x"),
            lambda: kept["writer"].seal(),
        ]
        for call in calls:
            with pytest.raises(StreamError, match="in the child"):
                call()
        # Everything is dropped: without a thread that could answer.
        kept.clear()
        held.clear()
        return bool(right)

    assert forked(in_child)
    assert [int(array[0]) for array in [*held, *arrays]] == list(range(12))
    kept["writer"].append(b"still open")
    kept["writer"].seal()
    assert len(store.list()) == 2


def test_a_forked_child_borrows_from_its_parent(store: Store) -> None:
    with store.create("arrays") as writer:
        for number in range(12):
            writer.append(np.full(100_000, number))

    def in_child() -> bool:
        assert not store.is_owner
        assert [info.name for info in store.list()] == ["arrays"]
        with pytest.raises(StreamError, match="belongs to another process"):
            store.create("x")
        numbers = []
        for array in store.open("arrays").arrays():
            assert is_view(store, array)
            numbers.append(int(array[-1]))
        # A child of the child.
        again = forked(lambda: len(list(store.open("arrays").bytes())) == 12)
        return again and numbers == list(range(12))

    assert store.is_owner
    assert forked(in_child)
    wait_for("the leases have ended", lambda: store.list()[0].readers == 0)
    assert len(list(store.open("arrays").arrays())) == 12


FORKING_OWNER = """
import os, sys, time
import numpy as np
from forebay.stream import Store
store = Store(sys.argv[1], "65MiB")
with store.create("kept", lifetime="kept") as writer:
    writer.append(np.arange(3))
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
sys.stdin.readline()
"""


def test_a_forked_child_keeps_no_store_from_the_next_owner(tmp_path: Path) -> None:
    """Neither the lock of the device nor the socket stays with the child of a killed owner."""
    path = tmp_path / "store"
    command = [sys.executable, "-c", FORKING_OWNER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        owner.kill()
        owner.wait(DEADLINE)
        try:
            os.kill(child, 0)  # it lives
            store = Store(path)
        finally:
            os.kill(child, signal.SIGKILL)
    assert store.is_owner
    assert [info.name for info in store.list()] == ["kept"]
    store.close()


BORROWER = """
import sys
import numpy as np
from forebay.stream import Store, StreamError
store = Store(sys.argv[1])
assert not store.is_owner
assert sorted(store.facts()) == [
    "block_bytes", "capacity_bytes", "read_memory_bytes", "read_memory_free_bytes"
]
total = 0
for batch in store.open("table"):
    total += int(batch["x"].sum())
reader = store.open("arrays", depth=2).arrays()
total += int(next(reader).sum())
print(total, flush=True)
sys.stdin.readline()
try:
    for array in reader:
        pass
except StreamError as error:
    print(error, flush=True)
else:
    print("all", flush=True)
"""


def test_another_process_borrows_until_the_owner_ends(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", CAPACITY)
    with store.create("table") as writer:
        writer.append(Table(5))
    with store.create("arrays") as writer:
        for number in range(20):
            writer.append(np.full(100_000, number + 1))
    command = [sys.executable, "-c", BORROWER, str(tmp_path / "store")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    borrowers: list[Any] = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for borrower in borrowers:
        assert borrower.stdout.readline() == "100010\n"
    assert borrowers[0].communicate("\n", DEADLINE)[0] == "all\n"
    store.close()
    assert "open it again" in borrowers[1].communicate("\n", DEADLINE)[0]
    assert all(borrower.returncode == 0 for borrower in borrowers)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("reader = store.open('open', follow=True)", 0),
        ("blocks = list(store.open('kept').arrays()); sys.exit(3)", 3),
        ("raise ValueError", 1),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
    ],
)
def test_the_end_of_an_interpreter_leaves_nothing_behind(
    tmp_path: Path, body: str, status: int
) -> None:
    assert run_script(tmp_path, body).returncode == status
    with Store(tmp_path) as store:
        assert [info.name for info in store.list()] == ["kept"]


def test_importing_starts_no_thread_and_no_other_library() -> None:
    code = """
import sys, threading, os
import forebay, forebay.stream
assert threading.active_count() == 1
assert len(os.listdir('/proc/self/task')) == 1, os.listdir('/proc/self/task')
assert not {'pyarrow', 'polars', 'pandas', 'torch'} & set(sys.modules), sys.modules.keys()
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_eight_threads_write_and_read_one_store(store: Store) -> None:
    family = store.family("threads")
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(5):
                name = f"{thread}-{number}"
                with family.create(name) as writer:
                    for block in range(4):
                        writer.append(np.full(10_000, thread * 100 + block))
                read = [int(array[0]) for array in store.open(name, depth=1).arrays()]
                assert read == [thread * 100 + block for block in range(4)]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert errors == []
    assert len(store.list()) == 40
    family.destroy()
    assert list(store.list()) == []
