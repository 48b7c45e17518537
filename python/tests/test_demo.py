"""``python -m forebay.demo`` as people run it: what it says, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import harness
import pytest

from forebay.demo.pictures import ITEM_BYTES, SHAPES, drawn

ITEMS = 600
SMALL = ("--items", str(ITEMS), "--epochs", "2", "--bandwidth", "50MB/s", "--latency", "5ms")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demonstration puts whatever it puts anywhere."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "forebay.demo", *arguments]


def processes_in(directory: Path) -> list[str]:
    """Who was told of a place below a directory."""
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_text().replace("\0", " ")
        except OSError:
            continue
        if str(directory) in line:
            lines.append(line)
    return lines


def test_the_next_job_reads_nothing_from_the_origin(scratch: Path) -> None:
    """Promise 3, and a network that learns."""
    ran = subprocess.run(
        command(*SMALL, "--format", "json"), capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    straight, through, after = found["jobs"]
    size = found["bytes"]
    assert size == ITEMS * ITEM_BYTES
    assert [epoch["origin_bytes"] for epoch in straight["epochs"]] == [size, size]
    assert [epoch["origin_bytes"] for epoch in through["epochs"]] == [size, 0]
    assert [epoch["origin_bytes"] for epoch in after["epochs"]] == [0, 0]
    for job in found["jobs"]:
        assert [epoch["samples"] for epoch in job["epochs"]] == [ITEMS, ITEMS]
        first, last = job["epochs"]
        assert last["loss"] < first["loss"]
        assert last["accuracy"] > 2 / len(SHAPES), "twice what guessing gives"
    assert "accuracy" in ran.stderr, "progress, away from the data"
    harness.wait_until(lambda: not processes_in(scratch))
    assert list(scratch.glob("forebay-*")) == []


def test_it_can_be_interrupted(scratch: Path) -> None:
    with subprocess.Popen(command(*SMALL), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("straight"):
                os.kill(process.pid, signal.SIGINT)
                break
        assert "nothing is left behind" in process.stderr.read()
        assert process.wait(timeout=60) == 130
    harness.wait_until(lambda: not processes_in(scratch))
    assert list(scratch.glob("forebay-*")) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--items", "0"), "from 1 to 1000000"),
        (("--workers", "-1"), "from 0 to 1000000"),
        (("--bandwidth", "fast"), "fast"),
        (("--latency=-3ms",), "-3ms"),
    ],
)
def test_nonsense_is_refused(scratch: Path, arguments: tuple[str, ...], said: str) -> None:
    ran = subprocess.run(
        command("--items", "10", *arguments), capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
    assert list(scratch.glob("forebay-*")) == []


def test_pictures_are_those_of_their_seed() -> None:
    first, labels = drawn(300, 3)
    again, _ = drawn(300, 3)
    other, _ = drawn(300, 4)
    assert (first == again).all()
    assert (first != other).any()
    assert set(labels) == set(range(len(SHAPES)))
