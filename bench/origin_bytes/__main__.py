"""Command line: ``python -m origin_bytes table --jobs 2,4,8 --cache 20%``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from origin_bytes.table import print_table


def fraction(text: str) -> float:
    """``20%`` or ``0.2``."""
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def comma_separated(parse: Callable[[str], Any], text: str) -> list[Any]:
    return [parse(one) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="origin_bytes", description="Count what jobs that share a node read from the origin."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser("table", help="measure all settings and compare with the targets")
    lists: list[tuple[str, Callable[[str], Any], str, str]] = [
        ("jobs", int, "1,2,4,8", "numbers of jobs"),
        ("cache", fraction, "10%,20%,50%,100%", "caches, as fractions of the dataset"),
        ("spread", float, "1,4", "time per batch of the slowest job ÷ the fastest"),
    ]
    for name, parse, default, meaning in lists:
        table.add_argument(
            f"--{name}",
            type=partial(comma_separated, parse),
            default=default,
            metavar="A,B",
            help=f"{meaning} (default: {default})".replace("%", "%%"),
        )
    table.add_argument("--items", type=int, default=3600, help="items of the dataset")
    table.add_argument("--size", type=int, default=112 << 10, help="bytes of an item")
    table.add_argument("--epochs", type=int, default=3, help="epochs of the leading job")
    table.add_argument("--batch", type=int, default=16, help="items of a batch")
    table.add_argument(
        "--compute",
        type=float,
        default=0.01,
        help="seconds of computing per batch, multiplied by the number of jobs, so that the "
        "machine keeps up with all of them",
    )
    table.add_argument("--workers", type=int, default=0, help="workers of each loader")
    table.add_argument("--format", choices=["text", "json"], default="text", help="output format")
    print_table(parser.parse_args())


if __name__ == "__main__":
    main()
