"""``evals/streams`` at a small size: every mode gives every job the same rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

EVALS = Path(__file__).parents[2] / "evals/streams"
sys.path.insert(0, str(EVALS))

import jobs  # noqa: E402
import streams  # noqa: E402

BLOCKS = 2
PASSES = 2


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rows")
    jobs.write(directory, BLOCKS * jobs.FLAT_BYTES)
    return directory


@pytest.mark.parametrize("workload", jobs.WORKLOADS)
def test_every_mode_gives_a_job_the_same_losses(rows: Path, workload: str) -> None:
    runs = {mode: jobs.run(rows, workload, mode, 48 << 20, PASSES) for mode in jobs.MODES}
    losses = runs["sst"]["losses"]
    assert losses[1] < losses[0], "the job learns"
    for run in runs.values():
        assert run["losses"] == losses
        assert run["bytes"] == PASSES * BLOCKS * jobs.FLAT_BYTES
        split = [run[f"{part}_seconds"] for part in ("compute", "deserialise", "io")]
        assert sum(split) <= run["seconds"]
    assert runs["sst"]["deserialise_seconds"] == 0 < runs["userio"]["deserialise_seconds"]
    key = {"language": "Python", "workload": workload, "times": 1}
    table = streams.table([{**key, "mode": mode, **run} for mode, run in runs.items()])
    assert table.count("\n") == 1 + len(jobs.MODES)
    assert "25.5 %, 82.3 %" in table
