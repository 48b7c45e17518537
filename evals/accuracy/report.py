"""The report: means and spread, differences with confidence intervals, and a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import mean, stdev
from typing import Any

#: The output of one job: one dictionary per epoch.
Run = list[dict[str, Any]]
COLOURS = ("#444444", "#c1440e", "#1f6f8b", "#6a8532")


@dataclass(frozen=True)
class Difference:
    """Difference of two means, with the 95 % interval of Welch's t-test."""

    points: float
    low: float
    high: float

    def conclusion(self) -> str:
        if self.low <= 0 <= self.high:
            largest = max(-self.low, self.high)
            return f"no difference found; at 95 % it is at most {largest:.2f} points"
        return f"a difference of {self.points:+.2f} points"


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Welch's t-test, which does not assume equal variances."""
    points = mean(ours) - mean(theirs)
    errors = [stdev(values) ** 2 / len(values) for values in (ours, theirs)]
    total = sum(errors)
    if total == 0:
        return Difference(points, points, points)
    freedom = total**2 / sum(
        error**2 / (len(values) - 1) for error, values in zip(errors, (ours, theirs), strict=True)
    )
    margin = _student(0.975, freedom) * math.sqrt(total)
    return Difference(points, points - margin, points + margin)


def _student(share: float, freedom: float) -> float:
    """The quantile of Student's t-distribution, by bisection over its integral."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    scale /= math.sqrt(freedom * math.pi)

    def density(at: float) -> float:
        return scale * math.pow(1 + at * at / freedom, -(freedom + 1) / 2)

    def below(at: float) -> float:
        steps = 2000  # Simpson's rule
        width = at / steps
        inner = (density(n * width) * (4 if n % 2 else 2) for n in range(1, steps))
        return 0.5 + (density(0) + density(at) + sum(inner)) * width / 3

    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < share else (low, middle)
    return low


def summary(runs: Sequence[Run], dataset_bytes: int) -> dict[str, Any]:
    """The figures of one row: accuracies in percent, and statistics of the cache."""
    final = [run[-1] for run in runs]
    row: dict[str, Any] = {
        "accuracies": [100 * last["accuracy"] for last in final],
        "losses": [last["loss"] for last in final],
        "curve": [100 * mean(run[at]["accuracy"] for run in runs) for at in range(len(runs[0]))],
        "padding": mean(last["padding"] for last in final) if final[0]["padding"] else None,
        "cpu_seconds": sum(epoch["cpu_seconds"] for run in runs for epoch in run),
    }
    if "hit_share" in final[0]:
        epochs = [epoch for run in runs for epoch in run]
        row["hit_share"] = mean(last["hit_share"] for last in final)
        row["pinned_share"] = mean(epoch["pinned_share"] for epoch in epochs)
        row["drawable_share"] = mean(epoch["drawable_share"] for epoch in epochs)
        row["distance"] = mean(epoch["shuffle_quality"]["distance"] for epoch in epochs)
        fetched = sum(last["origin_bytes"] for last in final)
        row["origin_share"] = fetched / (dataset_bytes * len(epochs))
    return row


def table(task: str, rows: dict[str, dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    names = ["accuracy, %", "difference (95 %)", "padding", "hits", "pinned", "drawn", "distance"]
    lines = [f"| {task} | " + " | ".join([*names, "read from the origin"]) + " |"]
    lines.append("|---" * (len(names) + 2) + "|")
    baseline: dict[str, Any] | None = None
    for name, row in rows.items():
        values = row["accuracies"]
        spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
        cells = [f"{mean(values):.2f}{spread}", "-"]
        if baseline is None:
            baseline = row
        elif len(values) > 1:
            found = difference(values, baseline["accuracies"])
            cells[1] = f"{found.points:+.2f} ({found.low:+.2f} .. {found.high:+.2f})"
        cells.append(f"{row['padding']:.1%}" if row["padding"] is not None else "-")
        shares = ("hit_share", "pinned_share", "drawable_share", "distance", "origin_share")
        cells += [
            "-" if key not in row else f"{row[key]:.2f}" if key == "distance" else f"{row[key]:.0%}"
            for key in shares
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def conclusions(rows: dict[str, dict[str, Any]]) -> list[str]:
    """The conclusion for each row, compared with the first."""
    (_, baseline), *others = rows.items()
    if len(baseline["accuracies"]) < 2:
        return ["differences need two seeds or more"]
    return [
        f"{name}: {difference(row['accuracies'], baseline['accuracies']).conclusion()}"
        for name, row in others
    ]


def plot(path: Path, tasks: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Accuracy by epoch, a panel for each task and a line for each row, as SVG."""
    width, height, margin = 360, 240, 45
    parts = []
    for panel, (task, rows) in enumerate(tasks.items()):
        left = panel * (width + margin) + margin
        curves = [row["curve"] for row in rows.values()]
        low, high = min(map(min, curves)), max(map(max, curves))
        low, high = math.floor(low / 5) * 5, math.ceil(high / 5) * 5
        across = width / max(1, len(curves[0]) - 1)
        parts.append(f'<text x="{left}" y="20" font-weight="bold">{escape(task)}</text>')
        for tick in range(low, high + 1, 5):
            y = margin + height - (tick - low) / (high - low) * height
            parts.append(f'<path d="M{left} {y:.1f}h{width}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>')
        for at, (name, row) in enumerate(rows.items()):
            points = [
                f"{left + epoch * across:.1f},"
                f"{margin + height - (value - low) / (high - low) * height:.1f}"
                for epoch, value in enumerate(row["curve"])
            ]
            colour = COLOURS[at % len(COLOURS)]
            line = f'<polyline fill="none" stroke="{colour}" stroke-width="2"'
            parts.append(f'{line} points="{" ".join(points)}"/>')
            y = margin + height - 15 * (len(rows) - at)
            text = f'<text x="{left + width - 5}" y="{y}" text-anchor="end" fill="{colour}">'
            parts.append(f"{text}{escape(name)}</text>")
        for epoch in range(len(curves[0])):
            x = left + epoch * across
            parts.append(f'<text x="{x:.1f}" y="{margin + height + 16}">{epoch + 1}</text>')
    size = f'width="{len(tasks) * (width + margin) + margin}" height="{height + 2 * margin}"'
    style = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    path.write_text("\n".join([head, *parts, "</svg>"]) + "\n")
