"""Command line: ``python -m first_use --objects 30000``.

Counts the requests that an origin gets when one job, or two that start together, read a new URL for
one epoch; and when the URL is used again after one object has changed. The time to the first batch
is given without that of the listing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness

from forebay._runtime.processes import binary

#: One epoch, or the first batch alone. Prints the seconds of the listing, and those from then until
#: the first batch.
JOB = """
import json, sys, time
import torch
import forebay
from forebay._data import dataset as datasets
options, first_only = json.loads(sys.argv[1])
listed, listing = datasets.digest_for, 0.0
def timed(*arguments, **keywords):
    global listing
    began = time.monotonic()
    found = listed(*arguments, **keywords)
    listing = time.monotonic() - began
    return found
datasets.digest_for = timed
if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    dataset = forebay.Dataset("s3://bucket/train", storage_options=options)
    loader = forebay.DataLoader(
        dataset, batch_size=64, shuffle=True, num_workers=0 if first_only else 2, collate_fn=list
    )
    batches = iter(loader)
    next(batches)
    print(listing, time.monotonic() - began - listing, flush=True)
    if not first_only:
        for _ in batches:
            pass
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="first_use", description=__doc__)
    parser.add_argument("--objects", type=int, default=30_000, help="objects of the dataset")
    parser.add_argument("--size", type=int, default=4096, help="bytes of an object")
    parser.add_argument("--jobs", type=int, default=1, help="jobs that start together")
    parser.add_argument(
        "--first-only", action="store_true", help="read the first batch only, without workers"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="first-use-") as directory:
        print(json.dumps(measure(Path(directory), options), indent=2))


def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    objects = directory / "origin" / "bucket" / "train"
    objects.mkdir(parents=True)
    for item in range(options.objects):
        content = item.to_bytes(8, "big") * -(-options.size // 8)
        (objects / f"{item:08}").write_bytes(content[: options.size])
    environment = {**os.environ, **harness.user_directories(directory)}
    environment["FOREBAY_SOCKET"] = str(directory / "run" / "node.sock")
    environment["FOREBAY_CAPACITY"] = str(4 * options.objects * options.size + (256 << 20)) + "B"
    with harness.serving(directory / "origin") as origin:
        world = harness.World(directory, origin["endpoint"], origin, directory / "none")
        found: dict[str, Any] = {"objects": options.objects, "jobs": options.jobs}
        found["first_use"] = run(world, environment, options.jobs, options.first_only)
        if not options.first_only:
            found["next_use"] = run(world, environment, 1, False)
            (objects / f"{0:08}").write_bytes(b"changed")
            found["one_changed"] = run(world, environment, 1, False)
        stop = [binary(), "stop", "--socket", environment["FOREBAY_SOCKET"]]
        subprocess.run(stop, env=environment, capture_output=True, check=False)
    return found


def run(
    world: harness.World, environment: dict[str, str], count: int, first_only: bool
) -> dict[str, Any]:
    """Let jobs start together; returns the origin's counts."""
    world.reset_counters()
    command = [sys.executable, "-c", JOB, json.dumps([world.options, first_only])]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    jobs = [subprocess.Popen(command, env=environment, **pipes) for _ in range(count)]
    for job in jobs:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
    printed = []
    for job in jobs:
        assert job.stdin is not None
        job.stdin.write("\n")
        job.stdin.flush()
    for job in jobs:
        printed.append(job.communicate()[0])
        assert job.returncode == 0, "a job failed"
    times = [[round(float(part), 2) for part in text.split()] for text in printed]
    counters = world.counters()
    reads = [one["gets"] for one in counters["objects"].values()]
    return {
        "object_reads": sum(reads),
        "reads_of_one_object_max": max(reads, default=0),
        "requests": counters.get("requests"),
        "listing_seconds": [listing for listing, _ in times],
        "first_batch_seconds": [batch for _, batch in times],
    }


if __name__ == "__main__":
    main()
