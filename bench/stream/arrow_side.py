"""One side of a comparison under a memory limit: sums a column of record batches on request.

``forebay`` reads the stream ``table`` of a store, ``pyarrow`` an Arrow file that it maps. A request
is a line. The answer is a line with the elapsed seconds, the seconds of processor time of all
threads, and the bytes of the column.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def forebay_columns(path: str) -> Callable[[], Iterator[Array]]:
    from forebay.stream import Store

    store = Store(path)
    return lambda: (batch["x"] for batch in store.open("table", depth=4))


def pyarrow_columns(path: str) -> Callable[[], Iterator[Array]]:
    import pyarrow as pa

    def columns() -> Iterator[Array]:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        with pa.memory_map(path) as source, pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number).column(0).to_numpy(zero_copy_only=True)

    return columns


def main() -> None:
    kind, path = sys.argv[1:]
    columns = {"forebay": forebay_columns, "pyarrow": pyarrow_columns}[kind](path)
    print("ready", flush=True)
    for _ in sys.stdin:
        began, cpu = time.perf_counter(), time.process_time()
        total, size = 0.0, 0
        for column in columns():
            total += float(column.sum())
            size += column.nbytes
        assert np.isfinite(total)
        print(time.perf_counter() - began, time.process_time() - cpu, size, flush=True)


if __name__ == "__main__":
    main()
