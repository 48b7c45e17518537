"""Accuracy of networks that are trained with substitution, compared with a full shuffle.

See README.md.
"""

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

from forebay.demo import services

HERE = Path(__file__).parent
BASELINE = "PyTorch's shuffling"

#: An origin with the latency of object storage, so that jobs benefit from a cache.
SHAPE = ("--latency", "20ms")
#: Fraction of its capacity that a node keeps free, for regions that are not full.
FREE_SPACE = 0.1
#: The unit of eviction; capacity is a multiple of it. One more is for the device's header, and one
#: because half-chunks differ in size.
REGION, MORE_REGIONS = 1 << 20, 2

#: Path of each task's data below ``--data``, and its source.
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


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def source(options: argparse.Namespace, name: str) -> Path:
    """Path of a task's data; exits with a hint if it is missing."""
    relative, description = SOURCES[name]
    path: Path = getattr(options, name) or options.data / relative
    if not path.exists():
        raise SystemExit(f"there is no `{path}`; give --{name} ZIP or DIRECTORY: {description}")
    return path


def run(task: str, seeds: Sequence[int], epochs: int, arguments: Sequence[str]) -> list[report.Run]:
    """Train with all of these seeds concurrently, each in its own process."""
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
        raise SystemExit(f"a job of `{task}` failed; its error is above")
    return runs


def evaluate(name: str, options: argparse.Namespace, work: Path) -> dict[str, dict[str, Any]]:
    """All rows of one task."""
    task: Task = TASKS[name]
    epochs, seeds = options.epochs or task.epochs, range(1, options.seeds + 1)
    directory = work / name
    progress(f"{name}: preparing")
    task.parts.prepare(source(options, name), directory)
    rows = {}
    columns = directory / "columns.csv"
    build = [str(columns) if word == "columns.csv" else word for word in task.digest]
    with services.origin(directory.parent, *SHAPE) as origin:
        digest = directory / "train.digest"
        size = origin.build_digest(f"s3://{directory.name}/train", digest, *build)
        for share in (None, *options.shares):
            began = time.monotonic()
            arguments, label = ["--directory", str(directory)], BASELINE
            with ExitStack() as stack:
                if share is not None:
                    label = f"substitution, cache of {share:.0%}"
                    cache = work / f"node-{name}-{share}"
                    regions = math.ceil(share * size / (1 - FREE_SPACE) / REGION) + MORE_REGIONS
                    flash_only = services.node(cache, regions * REGION, "--memory-cache", "0B")
                    node = stack.enter_context(flash_only)
                    arguments += ["--digest", str(digest), "--node", str(node)]
                    arguments += ["--origin", json.dumps(origin.options)]
                runs = run(name, seeds, epochs, arguments)
            rows[label] = {**report.summary(runs, size), "runs": runs}
            progress(f"{name}: {label}, {options.seeds} jobs, {time.monotonic() - began:.0f} s")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default_data = HERE.parents[2] / "shared" / "data"
    data = Path(os.environ.get("FOREBAY_DATA", default_data))
    parser.add_argument("--data", type=Path, default=data, help="directory with both archives")
    parser.add_argument("--images", type=Path, help="CIFAR-10, as an archive or a directory")
    parser.add_argument("--speech", type=Path, help="spoken digits, as an archive or a directory")
    parser.add_argument("--task", choices=TASKS, action="append", help="run this task only")
    parser.add_argument("--seeds", type=int, default=5, help="concurrent jobs, one seed each")
    parser.add_argument("--epochs", type=int, help="epochs (default: each task's own number)")
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0.1, 0.2], help="caches ÷ dataset"
    )
    parser.add_argument("--core", type=int, help="run everything on this core")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    parser.add_argument("--plot", type=Path, help="plot accuracy by epoch to this SVG file")
    options = parser.parse_args()
    names = options.task or list(TASKS)
    for name in names:
        source(options, name)
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    # SIGTERM ends the jobs, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="forebay-accuracy-") as work:
        tasks = {name: evaluate(name, options, Path(work)) for name in names}
    for name, rows in tasks.items():
        print(report.table(name, rows), *report.conclusions(rows), "", sep="\n")
    progress(f"{time.monotonic() - began:.0f} s in total")
    if options.json:
        options.json.write_text(json.dumps(tasks, indent=1) + "\n")
    if options.plot:
        report.plot(options.plot, tasks)


if __name__ == "__main__":
    main()
