"""The report: a row for each setting, as text or JSON."""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness

from origin_bytes.measure import numbered, run
from origin_bytes.settings import Outcome, Setting

HEAD = (
    "jobs  cache  spread  pinned  first  later  bound  ratio"
    "  claimed  uncached  fallback  probes  target  verdict"
)


def print_table(options: argparse.Namespace) -> None:
    """Measure all settings, and print each row when it is complete."""
    settings = [
        Setting(
            jobs,
            cache,
            spread,
            options.epochs,
            options.batch,
            options.compute * jobs,
            options.workers,
        )
        for jobs, cache, spread in itertools.product(options.jobs, options.cache, options.spread)
        if jobs > 1 or spread == options.spread[0]
    ]
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="forebay-origin-bytes-") as directory:
        origin = Path(directory) / "world"
        contents = list(numbered(options.items, options.size))
        with harness.origin(origin, contents=contents) as world:
            if options.format == "text":
                print(HEAD, flush=True)
            for setting in settings:
                workdir = Path(directory) / f"{len(rows)}"
                outcome = run(world, workdir, setting, options.size, options.items)
                shutil.rmtree(workdir)
                rows.append(row(outcome))
                if options.format == "text":
                    print(line(rows[-1]), flush=True)
    if options.format == "json":
        print(json.dumps(rows, indent=2))


def row(outcome: Outcome) -> dict[str, Any]:
    """An outcome as fractions of the dataset; those of `later` are per turn."""
    setting, later = outcome.setting, outcome.later
    bound = setting.bound
    return {
        **{name: asdict(setting)[name] for name in ("jobs", "cache", "spread")},
        "pinned": later.pinned,
        "first": outcome.first.counted,
        "later": later.counted,
        "bound": bound,
        "ratio": later.counted / bound if bound else None,
        "first_causes": outcome.first.per_turn,
        "later_causes": later.per_turn,
        "target": setting.target,
        "verdict": "met" if outcome.is_met() else "missed",
        "why": outcome.why,
    }


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    ratio = "    -" if row["ratio"] is None else f"{row['ratio']:5.3f}"
    causes = row["later_causes"]
    return (
        f"{row['jobs']:4}  {row['cache']:5.0%}  {row['spread']:6g}  {row['pinned']:6.1%}"
        f"  {row['first']:5.3f}  {row['later']:5.3f}  {row['bound']:5.3f}  {ratio}"
        f"  {causes['claimed']:7.3f}  {causes['uncached']:8.3f}  {causes['fallback']:8.3f}"
        f"  {causes['probe']:6.3f}  {row['target']:6.2f}  {row['verdict']}"
    )
