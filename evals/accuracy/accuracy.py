"""Do networks learn as well when batches are made of what is cached? See README.md."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import report
from training import TASKS, Task

from forebay.demo import stage

HERE = Path(__file__).parent
BASELINE = "PyTorch's shuffling"

#: An origin as far away as object storage is: a cache is worth something to its jobs.
SHAPE = ("--latency", "20ms")
#: What a node keeps of its capacity for regions that are not full.
SPARE = 0.1
#: The unit of eviction; capacity is a multiple of it. One is for the device's own head, and one
#: because pieces of a dataset are not all of one size.
REGION, MORE_REGIONS = 1 << 20, 2

#: Where each task's data is, below the directory of all, and where it comes from.
SOURCES = {
    "images": (
        "images/cifar10_jpg_40000.zip",
        "CIFAR-10 as image files, train/CLASS/NAME.jpg or .png and test/CLASS/NAME.jpg or .png"
        " (https://www.cs.toronto.edu/~kriz/cifar.html)",
    ),
    "speech": (
        "audio/fsdd_3000_wav.zip",
        "the recordings of the Free Spoken Digit Dataset, DIGIT_SPEAKER_NUMBER.wav"
        " (https://github.com/Jakobovski/free-spoken-digit-dataset)",
    ),
}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def source(told: argparse.Namespace, name: str) -> Path:
    """Where a task's data is, or an end with a hint."""
    below, what = SOURCES[name]
    path: Path = getattr(told, name) or told.data / below
    if not path.exists():
        raise SystemExit(f"there is no `{path}`; give --{name} ZIP or DIRECTORY: {what}")
    return path


def run(task: str, seeds: Sequence[int], epochs: int, arguments: Sequence[str]) -> list[report.Run]:
    """Train with all of these seeds, each in a process of its own, at the same time."""
    command = [sys.executable, str(HERE / "training.py"), "--task", task, "--epochs", str(epochs)]
    with ExitStack() as stack:
        jobs = []
        for seed in seeds:
            job = subprocess.Popen(
                [*command, "--seed", str(seed), *arguments], stdout=subprocess.PIPE, text=True
            )
            jobs.append(stack.enter_context(job))
            stack.callback(job.terminate)
        runs = [[json.loads(line) for line in job.communicate()[0].splitlines()] for job in jobs]
    if any(len(run) != epochs for run in runs):
        raise SystemExit(f"a job of `{task}` has failed; see above")
    return runs


def evaluate(name: str, told: argparse.Namespace, work: Path) -> dict[str, dict[str, Any]]:
    """All rows of one task."""
    task: Task = TASKS[name]
    epochs, seeds = told.epochs or task.epochs, range(1, told.seeds + 1)
    directory = work / name
    say(f"{name}: preparing")
    task.parts.prepare(source(told, name), directory)
    rows = {}
    columns = directory / "columns.csv"
    build = [str(columns) if word == "columns.csv" else word for word in task.digest]
    with stage.origin(directory.parent, *SHAPE) as origin:
        digest = directory / "train.digest"
        size = origin.build_digest(f"s3://{directory.name}/train", digest, *build)
        for share in (None, *told.shares):
            began = time.monotonic()
            arguments, label = ["--directory", str(directory)], BASELINE
            with ExitStack() as stack:
                if share is not None:
                    label = f"substitution, cache of {share:.0%}"
                    place = work / f"node-{name}-{share}"
                    regions = math.ceil(share * size / (1 - SPARE) / REGION) + MORE_REGIONS
                    of_flash = stage.node(place, regions * REGION, "--memory", "0B")
                    node = stack.enter_context(of_flash)
                    arguments += ["--digest", str(digest), "--node", str(node)]
                    arguments += ["--origin", json.dumps(origin.options)]
                runs = run(name, seeds, epochs, arguments)
            rows[label] = {**report.summary(runs, size), "runs": runs}
            say(f"{name}: {label}, {told.seeds} jobs, {time.monotonic() - began:.0f} s")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = HERE.parents[2] / "shared" / "data"
    data = Path(os.environ.get("FOREBAY_DATA", known))
    parser.add_argument("--data", type=Path, default=data, help="a directory with both archives")
    parser.add_argument("--images", type=Path, help="CIFAR-10, an archive or a directory")
    parser.add_argument("--speech", type=Path, help="spoken digits, an archive or a directory")
    parser.add_argument("--task", choices=TASKS, action="append", help="only this one")
    parser.add_argument("--seeds", type=int, default=5, help="jobs at once, a seed each")
    parser.add_argument("--epochs", type=int, help="instead of each task's own number")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.2], help="cache sizes")
    parser.add_argument("--core", type=int, help="run everything on this core alone")
    parser.add_argument("--json", type=Path, help="write all that was measured to this file")
    parser.add_argument("--plot", type=Path, help="draw accuracy by epoch to this SVG file")
    told = parser.parse_args()
    names = told.task or list(TASKS)
    for name in names:
        source(told, name)
    if told.core is not None:
        os.sched_setaffinity(0, {told.core})
    # Ended like this, too, it takes its jobs along.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="forebay-accuracy-") as work:
        tasks = {name: evaluate(name, told, Path(work)) for name in names}
    for name, rows in tasks.items():
        print(report.table(name, rows), *report.words(rows), "", sep="\n")
    say(f"{time.monotonic() - began:.0f} s in all")
    if told.json:
        told.json.write_text(json.dumps(tasks, indent=1) + "\n")
    if told.plot:
        report.plot(told.plot, tasks)


if __name__ == "__main__":
    main()
