"""Samples per second of forebay's loader and of plain PyTorch, in adjacent pairs.

Three ways to the same items: through forebay, from local files in the page cache, and from the same
S3 origin with boto3. Items are bytes as they are, so what is compared is the way, not the decoding.
Prints one JSON object for each row, with the pairs as they were measured; ``cargo xtask bench
loaders`` evaluates them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from torch.utils.data import DataLoader, Dataset

import forebay
from forebay._processes import binary

BATCH = 64
#: About an image of ImageNet.
ITEM_SIZE = 110_000
#: An origin a region away: every request waits.
LATENCY = "5ms"

Measure = Callable[[], float]


class LocalFiles(Dataset[bytes]):
    """Plain files, which the page cache holds."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        return self.paths[index].read_bytes()


class S3Objects(Dataset[bytes]):
    """Objects, one request each; a client for every process, as boto3 wants it."""

    def __init__(self, origin: dict[str, str], keys: list[str]) -> None:
        self.origin = origin
        self.keys = keys
        self._client: tuple[int, Any] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> bytes:
        if self._client is None or self._client[0] != os.getpid():
            client = boto3.client(
                "s3",
                endpoint_url=self.origin["endpoint"],
                aws_access_key_id=self.origin["access_key"],
                aws_secret_access_key=self.origin["secret_key"],
                region_name="us-east-1",
            )
            self._client = (os.getpid(), client)
        answer = self._client[1].get_object(Bucket="bucket", Key=f"train/{self.keys[index]}")
        content: bytes = answer["Body"].read()
        return content


def as_it_is(batch: list[bytes]) -> list[bytes]:
    """No collation: it would be the same for all."""
    return batch


class Bench:
    """A dataset on disk, behind an origin, and in a digest."""

    def __init__(self, directory: Path, items: int) -> None:
        self.directory = directory
        self.items = items
        self.root = directory / "origin" / "bucket" / "train"
        self.root.mkdir(parents=True)
        source = random.Random(5)
        self.names = [f"{item:06}.bin" for item in range(items)]
        for name in self.names:
            length = ITEM_SIZE + source.randrange(-20_000, 20_000)
            (self.root / name).write_bytes(source.randbytes(length))
        self.digest = directory / "train.digest"
        self.origin: dict[str, str] = {}

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run the origin and build the digest."""
        arguments = ["dev", "origin", "--root", str(self.directory / "origin")]
        with started([*arguments, "--latency", LATENCY]) as told:
            self.origin = told
            environment = {
                **os.environ,
                "AWS_ENDPOINT_URL": told["endpoint"],
                "AWS_ACCESS_KEY_ID": told["access_key"],
                "AWS_SECRET_ACCESS_KEY": told["secret_key"],
                "AWS_REGION": "us-east-1",
            }
            build = ["digest", "build", "s3://bucket/train", "-o", str(self.digest)]
            subprocess.run(
                [binary(), *build], env=environment, check=True, stdout=subprocess.DEVNULL
            )
            yield

    @contextmanager
    def node(self, name: str) -> Iterator[Path]:
        """An empty node with room for everything."""
        directory = self.directory / name
        directory.mkdir(mode=0o700)
        arguments = ["serve", "--socket", str(directory / "node.sock"), "--capacity", "20GB"]
        with started([*arguments, "--directory", str(directory / "blobs")]) as told:
            yield Path(told["socket"])
        shutil.rmtree(directory)

    def through_forebay(self, node: Path, workers: int) -> Iterable[list[bytes]]:
        options = {key: self.origin[key] for key in ("endpoint", "access_key", "secret_key")}
        dataset = forebay.Dataset(self.digest, cache=node, storage_options=options)
        return forebay.DataLoader(dataset, shuffle=True, **common(workers))

    def local(self, workers: int) -> Iterable[list[bytes]]:
        files = LocalFiles([self.root / name for name in self.names])
        return DataLoader(files, shuffle=True, **common(workers))

    def s3(self, workers: int) -> Iterable[list[bytes]]:
        return DataLoader(S3Objects(self.origin, self.names), shuffle=True, **common(workers))

    def epoch(self, loader: Iterable[list[bytes]]) -> float:
        """Samples per second over one epoch."""
        began, seen = time.perf_counter(), 0
        for batch in loader:
            seen += len(batch)
        assert seen == self.items, seen
        return seen / (time.perf_counter() - began)


def common(workers: int) -> dict[str, Any]:
    return {
        "batch_size": BATCH,
        "num_workers": workers,
        "collate_fn": as_it_is,
        "persistent_workers": workers > 0,
    }


@contextmanager
def started(arguments: list[str]) -> Iterator[dict[str, str]]:
    """A process of ours that says on one line when it is ready."""
    environment = {**os.environ, "FOREBAY_LOG": "warn"}
    command = [binary(), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def pairs(count: int, ours: Measure, theirs: Measure) -> list[tuple[float, float]]:
    """Both sides, one right after the other, taking turns at who goes first."""
    measured = []
    for pair in range(count):
        if pair % 2 == 0:
            first = ours()
            measured.append((first, theirs()))
        else:
            first = theirs()
            measured.append((ours(), first))
    return measured


def report(row: str, against: str, measured: list[tuple[float, float]]) -> None:
    told = {"row": row, "unit": "samples/s", "against": against, "pairs": measured}
    print(json.dumps(told), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five pairs and less data")
    quick = parser.parse_args().quick
    count, items = (5, 1000) if quick else (15, 5000)
    with tempfile.TemporaryDirectory() as place:
        note(f"making {items} items of about {ITEM_SIZE} bytes")
        bench = Bench(Path(place), items)
        with bench.serving():
            for workers in (0, 2):
                compare(bench, workers, count)


def compare(bench: Bench, workers: int, count: int) -> None:
    with bench.node("warm") as node:
        note(f"{workers} workers, warm: {count} pairs against local files and against the origin")
        ours, local = bench.through_forebay(node, workers), bench.local(workers)
        for loader in (ours, local, ours):
            bench.epoch(loader)  # fills the caches and starts the workers
        measured = pairs(count, lambda: bench.epoch(ours), lambda: bench.epoch(local))
        report(f"warm, {workers} workers", "local files in the page cache", measured)
        far = bench.s3(workers)
        measured = pairs(count, lambda: bench.epoch(ours), lambda: bench.epoch(far))
        report(f"warm, {workers} workers", "boto3 on the origin", measured)

    number = iter(range(count))

    def cold() -> float:
        with bench.node(f"cold-{next(number)}") as node:
            return bench.epoch(bench.through_forebay(node, workers))

    note(f"{workers} workers, cold: {count} pairs against the origin")
    measured = pairs(count, cold, lambda: bench.epoch(bench.s3(workers)))
    report(f"cold, {workers} workers", "boto3 on the origin", measured)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
