"""The jobs of the evaluation in Python, and the modes in which they read their rows.

``jobs.py write DIRECTORY BYTES`` writes the rows. ``jobs.py run DIRECTORY WORKLOAD MODE MEMORY
PASSES [GROUP]`` runs a job and prints how its time was spent, as JSON. The modes are those of the
Rust program; what it serialises row by row is pickled here.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from forebay.stream import Store

Array = np.ndarray[Any, Any]

WORKLOADS = ("logistic", "kmeans", "svm")
MODES = ("buffered", "mmap", "pref", "userio", "sst")
FEATURES = 16
#: Rows of a block: fewer than 4 MiB in either form.
BLOCK_ROWS = 28_000
FLAT_BYTES = BLOCK_ROWS * (1 + FEATURES) * 8
_CLUSTERS, _STEP, _REGULARISATION, _PREFETCHED, _PAGE = 4, 0.5, 1e-4, 2, 4096


def write(directory: Path, size: int) -> None:
    """Write rows whose features tell their label: flat and pickled, to files and to streams."""
    random = np.random.default_rng(5)
    direction = random.normal(size=FEATURES)
    count = -(-size // FLAT_BYTES)
    with (
        Store(directory / "store", capacity=(2 * count + 34) * (4 << 20)) as store,
        (directory / "flat").open("wb") as flat_file,
        (directory / "pickled").open("wb") as pickled_file,
        store.create("flat", lifetime="kept") as flat,
        store.create("pickled", lifetime="kept") as pickled,
    ):
        for _ in range(count):
            rows = random.normal(size=(BLOCK_ROWS, 1 + FEATURES))
            noise = random.normal(size=BLOCK_ROWS)
            rows[:, 0] = np.where(rows[:, 1:] @ direction + noise > 0, 1.0, -1.0)
            flat_file.write(rows.tobytes())
            flat.append(rows)
            block = pickle.dumps(rows)
            pickled_file.write(len(block).to_bytes(8, "little") + block)
            pickled.append(block)
        for file in (flat_file, pickled_file):
            file.flush()
            os.fsync(file.fileno())


class Job:
    """A job between two blocks."""

    def __init__(self, workload: str) -> None:
        self._workload = workload
        self._weights = np.zeros(FEATURES)
        self._centres: Array | None = None
        self._begin_pass()

    def _begin_pass(self) -> None:
        self._sums = np.zeros((_CLUSTERS, FEATURES) if self._workload == "kmeans" else FEATURES)
        self._counts = np.zeros(_CLUSTERS)
        self._loss, self._rows = 0.0, 0

    def on_block(self, rows: Array) -> None:
        """Compute on a block."""
        labels, features = rows[:, 0], rows[:, 1:]
        self._rows += len(rows)
        if self._workload == "kmeans":
            if self._centres is None:
                self._centres = features[:_CLUSTERS].copy()
            centres = self._centres
            squares = (centres**2).sum(axis=1) - 2 * (features @ centres.T)
            nearest = squares.argmin(axis=1)
            self._loss += float((features**2).sum() + squares.min(axis=1).sum())
            for cluster in range(_CLUSTERS):
                members = features[nearest == cluster]
                self._sums[cluster] += members.sum(axis=0)
                self._counts[cluster] += len(members)
            return
        margins = labels * (features @ self._weights)
        if self._workload == "svm":
            self._loss += float(np.maximum(1 - margins, 0).sum())
            slopes = np.where(margins < 1, -labels, 0.0)
        else:
            self._loss += float(np.logaddexp(0, -margins).sum())
            slopes = -labels / (1 + np.exp(margins))
        self._sums += slopes @ features

    def on_pass(self) -> float:
        """End a pass; returns its mean loss."""
        loss = self._loss / self._rows
        if self._workload == "kmeans":
            assert self._centres is not None
            filled = self._counts > 0
            self._centres[filled] = self._sums[filled] / self._counts[filled, None]
        else:
            decay = 1 - _STEP * _REGULARISATION if self._workload == "svm" else 1.0
            self._weights = decay * self._weights - _STEP * self._sums / self._rows
        self._begin_pass()
        return loss


class Split:
    """How the time of a run was spent."""

    def __init__(self) -> None:
        self.io_seconds = self.deserialise_seconds = self.compute_seconds = 0.0
        self.bytes = 0

    def blocks(self, blocks: Iterator[Any]) -> Iterator[Any]:
        """The same blocks; the wait for each is I/O."""
        while True:
            began = time.perf_counter()
            block = next(blocks, None)
            self.io_seconds += time.perf_counter() - began
            if block is None:
                return
            yield block


def _pickled(path: Path) -> Iterator[bytes]:
    """Blocks of a file, through the page cache."""
    with path.open("rb", buffering=0) as file:
        while head := file.read(8):
            yield file.read(int.from_bytes(head, "little"))


def _ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks, read ahead by a thread."""
    ready: queue.Queue[bytes | None] = queue.Queue(_PREFETCHED)

    def read() -> None:
        for block in blocks:
            ready.put(block)
        ready.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (block := ready.get()) is not None:
        yield block


def _mapped(path: Path) -> Iterator[Array]:
    """Blocks of a mapped file. Their pages are touched, so that their faults count as I/O."""
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapping.madvise(mmap.MADV_SEQUENTIAL)
    rows = np.frombuffer(mapping).reshape(-1, 1 + FEATURES)
    for at in range(0, len(rows), BLOCK_ROWS):
        block = rows[at : at + BLOCK_ROWS]
        block.reshape(-1).view(np.uint8)[::_PAGE].max()
        yield block


def source(mode: str, directory: Path, memory: int) -> Callable[[], Iterator[Any]]:
    """A function that begins a pass over the blocks."""
    name = "flat" if mode in ("mmap", "sst") else "pickled"
    path = directory / name
    if mode in ("userio", "sst"):
        store = Store(directory / "store", memory=memory)
        if mode == "sst":
            return lambda: store.open(name, depth=4).arrays()
        return lambda: store.open(name, depth=1, in_flight=1).bytes()
    with path.open("rb") as file:  # nothing that was left by the run before
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if mode == "mmap":
        return lambda: _mapped(path)
    return lambda: _pickled(path) if mode == "buffered" else _ahead(_pickled(path))


def run(directory: Path, workload: str, mode: str, memory: int, passes: int) -> dict[str, Any]:
    """Run a job; returns its times and the mean loss of each pass."""
    begin_pass, job, split = source(mode, directory, memory), Job(workload), Split()
    is_flat = mode in ("mmap", "sst")
    losses = list[float]()
    began = time.perf_counter()
    for _ in range(passes):
        for block in split.blocks(begin_pass()):
            since = time.perf_counter()
            rows = block if is_flat else pickle.loads(block)
            decoded = time.perf_counter()
            if not is_flat:
                split.deserialise_seconds += decoded - since
            job.on_block(rows)
            split.compute_seconds += time.perf_counter() - decoded
            split.bytes += rows.nbytes
        losses.append(job.on_pass())
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "loss": losses[-1], "losses": losses, **vars(split)}


def main() -> None:
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]))
        return
    directory, workload, mode, memory, passes, *group = sys.argv[2:]
    for one in group:
        (Path(one) / "cgroup.procs").write_text(str(os.getpid()))
    print(json.dumps(run(Path(directory), workload, mode, int(memory), int(passes))))


if __name__ == "__main__":
    main()
