"""SSDStreamer's evaluation: iterative jobs over 2, 4 and 8 times their memory, in Rust and Python.

Each run is a process in a control group, whose limit includes the page cache; that needs root. The
modes of a job run one after another, several rounds of them, and the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jobs import MODES, WORKLOADS

_MIB = 1 << 20
_GROUPS = Path("/sys/fs/cgroup/memory")
_HERE = Path(__file__).parent
#: What the paper reports for SST: time and disk time saved, in percent.
_PUBLISHED = {"buffered": (25.5, 82.3), "pref": (20.9, 76.4), "userio": (18.2, 72.2)}
#: Memory of a process besides that of its store.
_STORE_SHARE = 2
#: Memory of the computation stays in the process. Otherwise glibc returns the temporary arrays of
#: each block to the kernel, except in modes that free long blocks: their first one raises these.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 * _MIB), "MALLOC_TRIM_THRESHOLD_": str(64 * _MIB)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--rust", type=Path, default=Path("target/dist/evals-streams"), help="the Rust program")
    add("--directory", type=Path, default=Path("target"), help="put the data here (%(default)s)")
    add("--memory", type=int, default=192, help="limit a process to N MiB (%(default)s)")
    add("--times", type=int, nargs="+", default=[2, 4, 8], help="data, in memories (%(default)s)")
    add("--passes", type=int, default=3, help="passes of a job (%(default)s)")
    add("--rounds", type=int, default=5, help="runs of each mode (%(default)s)")
    add("--languages", nargs="+", default=["Rust", "Python"], help="run these (%(default)s)")
    add("--json", type=Path, help="write the runs to this file, after each data size")
    return parser.parse_args()


@contextmanager
def _group(memory: int) -> Iterator[list[str]]:
    """A control group with a limit; without root, none."""
    directory = _GROUPS / f"forebay-evals-{os.getpid()}-{time.monotonic_ns()}"
    try:
        directory.mkdir()
    except OSError:
        yield []
        return
    (directory / "memory.limit_in_bytes").write_text(str(memory))
    try:
        yield [str(directory)]
    finally:
        with suppress(OSError):
            directory.rmdir()


def _run(program: list[str], *arguments: str) -> str:
    ran = subprocess.run(
        [*program, *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, **_ALLOCATOR},
        text=True,
        check=True,
    )
    return ran.stdout


def _measure(options: argparse.Namespace, language: str, times: int) -> list[dict[str, Any]]:
    """All runs of a language on data of a size."""
    rust = [str(options.rust)]
    program = rust if language == "Rust" else [sys.executable, str(_HERE / "jobs.py")]
    memory, size = options.memory * _MIB, times * options.memory * _MIB
    store = memory // _STORE_SHARE
    unit = "B" if language == "Rust" else ""
    runs = []
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="evals-streams-") as directory:
        _run(program, "write", directory, f"{size}{unit}")
        for workload in WORKLOADS:
            for number in range(options.rounds):
                # Another order in each round, so that no mode always follows the same other.
                for mode in MODES[number % len(MODES) :] + MODES[: number % len(MODES)]:
                    with _group(memory) as group:
                        limits = [f"{store}{unit}", str(options.passes), *group]
                        text = _run(program, "run", directory, workload, mode, *limits)
                    key = {"language": language, "workload": workload, "times": times}
                    runs.append({**key, "mode": mode, "limited": bool(group), **json.loads(text)})
                    print(f"{language}, {workload}, {times} x memory, {mode}", file=sys.stderr)
    return runs


def _median(runs: list[dict[str, Any]], key: str) -> float:
    value: float = statistics.median(run[key] for run in runs)
    return value


def table(runs: list[dict[str, Any]]) -> str:
    """The medians as a page's table, beside what the paper reports for its average job."""
    lines = [
        "| job | data | mode | time, s | compute | decode | I/O | SST saves | of I/O | paper |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    keys = dict.fromkeys((run["language"], run["workload"], run["times"]) for run in runs)
    for language, workload, times in keys:
        named = (language, workload, times)
        these = [r for r in runs if (r["language"], r["workload"], r["times"]) == named]
        by_mode = {mode: [run for run in these if run["mode"] == mode] for mode in MODES}
        best = {key: _median(by_mode["sst"], key) for key in ("seconds", "io_seconds")}
        for mode in MODES:
            medians = {
                key: _median(by_mode[mode], key)
                for key in ("seconds", "compute_seconds", "deserialise_seconds", "io_seconds")
            }
            saved = [f"{100 * (1 - best[key] / max(medians[key], 1e-9)):.1f} %" for key in best]
            cells = [f"{language}, {workload}", f"{times} x", mode]
            cells += [f"{value:.2f}" for value in medians.values()]
            cells += ["-", "-"] if mode == "sst" else saved
            paper = _PUBLISHED.get(mode)
            cells.append("-" if paper is None else f"{paper[0]} %, {paper[1]} %")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    options = _options()
    runs = list[dict[str, Any]]()
    for language in options.languages:
        for times in options.times:
            runs += _measure(options, language, times)
            if options.json:
                options.json.write_text(json.dumps(runs, indent=1) + "\n")
    if not all(run["limited"] for run in runs):
        print("without a memory limit: control groups need root", file=sys.stderr)
    print(table(runs))


if __name__ == "__main__":
    main()
