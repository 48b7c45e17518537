"""One job: reads epoch after epoch until its standard input ends.

``measure.py`` starts it as ``python -m origin_bytes.job JSON``. It prints its agent's socket, waits
for a line, and then prints for every epoch whether each item was yielded exactly once (promise 2).
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import forebay
from origin_bytes.progress import Progress


def work(task: dict[str, Any]) -> None:
    number, yielded = task["number"], 0
    path, jobs = task["progress"]
    progress = Progress(Path(path), jobs)
    dataset = forebay.Dataset(
        task["digest"],
        cache=task["node"],
        storage_options=task["options"],
        job=f"job {number}",
    )
    loader = forebay.DataLoader(
        dataset,
        batch_size=task["batch"],
        shuffle=True,
        collate_fn=numbers,
        num_workers=task["workers"],
        generator=torch.Generator().manual_seed(number),
    )
    report({"agent": str(dataset._job.socket)})
    sys.stdin.readline()
    while True:
        seen = Counter[int]()
        for batch in loader:
            seen.update(batch)
            time.sleep(task["compute"])
            yielded += 1
            progress.set(number, yielded)
            if select.select([sys.stdin], [], [], 0)[0]:
                return
        report({"exact": len(seen) == len(dataset) and set(seen.values()) == {1}})


def numbers(batch: list[bytes]) -> list[int]:
    """The numbers of items, which are their first eight bytes."""
    return [int.from_bytes(item[:8], "little") for item in batch]


def report(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
