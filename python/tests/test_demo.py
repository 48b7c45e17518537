"""``python -m forebay.demo``: its results, its errors, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import harness
import pytest

from forebay.demo.pictures import ITEM_BYTES, SHAPES, generate

ITEMS = 600
SMALL = ("--items", str(ITEMS), "--epochs", "2", "--bandwidth", "50MB/s", "--latency", "5ms")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for all temporary files of the demo."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "forebay.demo", *arguments]


def processes_in(directory: Path) -> list[str]:
    """Command lines of processes with a path below a directory."""
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
    """Promise 3. The network learns."""
    ran = subprocess.run(
        command(*SMALL, "--format", "json"), capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    uncached, first, second = found["jobs"]
    size = found["bytes"]
    assert size == ITEMS * ITEM_BYTES
    assert [epoch["origin_bytes"] for epoch in uncached["epochs"]] == [size, size]
    assert [epoch["origin_bytes"] for epoch in first["epochs"]] == [size, 0]
    assert [epoch["origin_bytes"] for epoch in second["epochs"]] == [0, 0]
    for job in found["jobs"]:
        assert [epoch["samples"] for epoch in job["epochs"]] == [ITEMS, ITEMS]
        before, last = job["epochs"]
        assert last["loss"] < before["loss"]
        assert last["accuracy"] > 2 / len(SHAPES), "twice as good as guessing"
    assert "accuracy" in ran.stderr, "progress is on stderr"
    harness.wait_until(lambda: not processes_in(scratch))
    assert list(scratch.glob("forebay-*")) == []


def test_ctrl_c_ends_the_demo(scratch: Path) -> None:
    with subprocess.Popen(command(*SMALL), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("without forebay"):
                os.kill(process.pid, signal.SIGINT)
                break
        assert "temporary files were removed" in process.stderr.read()
        assert process.wait(timeout=60) == 130
    harness.wait_until(lambda: not processes_in(scratch))
    assert list(scratch.glob("forebay-*")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--items", "0"), "from 1 to 1000000"),
        (("--workers", "-1"), "from 0 to 1000000"),
        (("--bandwidth", "fast"), "fast"),
        (("--latency=-3ms",), "-3ms"),
    ],
)
def test_invalid_arguments_are_refused(
    scratch: Path, arguments: tuple[str, ...], message: str
) -> None:
    ran = subprocess.run(
        command("--items", "10", *arguments), capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
    assert list(scratch.glob("forebay-*")) == []


def test_pictures_depend_on_the_seed_only() -> None:
    first, labels = generate(300, 3)
    again, _ = generate(300, 3)
    other, _ = generate(300, 4)
    assert (first == again).all()
    assert (first != other).any()
    assert set(labels) == set(range(len(SHAPES)))
