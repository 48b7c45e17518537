"""Real processes around a dataset of known content: an origin, its digest, nodes and jobs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import forebay
from forebay._runtime import processes
from forebay._runtime.processes import answers, binary

#: Several batches and a short last one; the items' lengths differ.
ITEMS = 203


def content(item: int) -> bytes:
    """The bytes of item number ``item``; number 7 is empty."""
    return b"" if item == 7 else f"item {item:05} ".encode() * (500 + item % 97)


CONTENTS = [content(item) for item in range(ITEMS)]
BYTES = sum(map(len, CONTENTS))


def user_directories(root: Path) -> dict[str, str]:
    """Environment variables that give a process a home directory of its own, under ``root``.

    The runtime directory is created: ``forebay`` ignores one that does not exist and falls back to
    ``/tmp``, where the user's own node listens.
    """
    runtime = root / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return {
        "HOME": str(root / "home"),
        "XDG_CACHE_HOME": str(root / "cache"),
        "XDG_CONFIG_HOME": str(root / "config"),
        "XDG_RUNTIME_DIR": str(runtime),
    }


@dataclass
class World:
    """An origin with a dataset, and the environment in which its jobs run."""

    directory: Path
    endpoint: str
    options: dict[str, object]
    digest: Path

    @property
    def objects(self) -> Path:
        return self.directory / "origin" / "bucket" / "train"

    def dataset(self, **options: Any) -> forebay.Dataset:
        options.setdefault("storage_options", self.options)
        return forebay.Dataset(options.pop("digest", self.digest), **options)

    def build(self, name: str, *arguments: str, url: str = "s3://bucket/train") -> Path:
        """Build a digest of the dataset, or of the objects at ``url``."""
        path = self.directory / name
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": str(self.options["access_key"]),
            "AWS_SECRET_ACCESS_KEY": str(self.options["secret_key"]),
            "AWS_REGION": "us-east-1",
        }
        command = [binary(), "digest", "build", url, "-o", str(path), *arguments]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        return path

    def explained(self, node: Path) -> Any:
        """The report of ``forebay explain`` about the dataset on a node."""
        command = [binary(), "explain", str(self.digest), "--socket", str(node)]
        command += ["--format", "json"]
        told = subprocess.run(command, check=True, capture_output=True, timeout=30)
        return json.loads(told.stdout)

    def mirror(self, directory: Path) -> Path:
        """Copy the objects to ``directory``, where their versions differ."""
        shutil.copytree(self.objects, directory)
        return directory

    def reset_counters(self) -> None:
        request = urllib.request.Request(f"{self.endpoint}/-/counters/reset", method="POST")
        urllib.request.urlopen(request, timeout=10).close()

    def counters(self) -> Any:
        with urllib.request.urlopen(f"{self.endpoint}/-/counters", timeout=10) as answer:
            return json.load(answer)


@contextmanager
def origin(directory: Path, *shape: str, contents: Sequence[bytes] = CONTENTS) -> Iterator[World]:
    """Serve the dataset until the block ends."""
    objects = directory / "origin" / "bucket" / "train"
    objects.mkdir(parents=True)
    for item, data in enumerate(contents):
        (objects / f"{item:05}.bin").write_bytes(data)
    items = range(len(contents))
    rows = "".join(f"{item:05}.bin,{item % 10},name {item}\n" for item in items)
    (directory / "labels.csv").write_text("object,label,name\n" + rows)
    with serving(directory / "origin", *shape) as told:
        world = World(directory, told["endpoint"], told, directory / "train.digest")
        world.build("train.digest", "--columns", str(directory / "labels.csv"))
        world.reset_counters()
        yield world


@contextmanager
def slow(world: World, latency: str) -> Iterator[World]:
    """The same dataset behind a second origin with this latency; the digest is the first's."""
    with serving(world.directory / "origin", "--latency", latency) as told:
        yield replace(world, endpoint=told["endpoint"], options=told)


@contextmanager
def serving(root: Path, *shape: str) -> Iterator[dict[str, Any]]:
    command = [binary(), "dev", "origin", "--root", str(root), *shape]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(timeout=10)


@contextmanager
def node(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A node with its socket and its blobs in ``directory``."""
    directory.mkdir(mode=0o700, exist_ok=True)
    command = [binary(), "serve", "--socket", str(directory / "node.sock")]
    command += ["--directory", str(directory / "blobs"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), "the node did not start"
            yield process
        finally:
            process.terminate()
            process.wait(timeout=10)


def listener(socket: Path) -> int:
    """The process that listens at a socket."""
    pid = processes.listener(socket)
    assert pid is not None
    return pid


def kill(pid: int) -> None:
    """Send SIGKILL."""
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    """Send SIGSTOP, and wait until it has an effect: other threads may run for a moment."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")

    def has_stopped() -> bool:
        stats = [(task / "stat").read_text() for task in tasks.iterdir()]
        return all(stat.rsplit(")", 1)[1].split()[0] == "T" for stat in stats)

    wait_until(has_stopped)


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def of_session(session: int) -> list[str]:
    """The processes of a job: those of its session, and agents that were started for it."""
    left = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        is_agent = f"--job-pid {session} " in command
        if fields[0] != "Z" and (int(fields[3]) == session or is_agent):
            left.append(f"{entry.name}: {command}")
    return left


def wait_until(ready: Callable[[], bool], patience: float = 10.0) -> None:
    """Wait until ``ready()`` holds; fail after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while not ready():
        assert time.monotonic() < deadline, f"not ready after {patience} s"
        time.sleep(0.01)


def agent_socket(dataset: forebay.Dataset) -> Path:
    return dataset._job.socket


def agent_is_up(dataset: forebay.Dataset) -> bool:
    return answers(agent_socket(dataset))
