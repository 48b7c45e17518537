"""Train a small real network three times on data that lies far away, and say what it cost.

First straight from the origin; then through forebay, whose cache is empty at first; then another
job, with another seed, which finds what the first has left. The pictures are made here, everything
else is real: the S3 server, the node, PyTorch's loader and the network.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import forebay
from forebay.demo import pictures, stage

_EXAMPLES = """\
examples:
  python -m forebay.demo
  python -m forebay.demo --epochs 5 --latency 50ms
  python -m forebay.demo --format json | jq '.jobs[] | .seconds'

It takes a minute or two on two idle cores, most of it computing.
Nothing is kept: all of it happens in a directory for temporary files, which is removed.
`forebay demo` shows many jobs on a cache much smaller than their data.
"""

_TEST_PICTURES = 600
#: Twice what the data takes, and what a device needs besides: room for everything.
_ROOM, _DEVICE = 2, 16 << 20
_SEED = 7


def main(arguments: Sequence[str] | None = None) -> int:
    told = _arguments().parse_args(arguments)
    # Ended like this, too, it leaves nothing behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        import torch  # noqa: F401
    except ImportError:
        return _refused("this trains with PyTorch: `pip install 'forebay[torch]'`")
    try:
        found = _demonstrate(told)
    except KeyboardInterrupt:
        print("\ninterrupted; nothing is left behind", file=sys.stderr)
        return 130
    except (forebay.ForebayError, OSError) as problem:
        return _refused(str(problem))
    print(json.dumps(found, indent=2) if told.format == "json" else _table(found))
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m forebay.demo",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    number = parser.add_argument
    number("--items", type=_count, default=3000, help="pictures to make, 12 kB each (%(default)s)")
    number("--epochs", type=_count, default=3, help="how often each job reads all (%(default)s)")
    number("--batch-size", type=_count, default=50, help="pictures of a batch (%(default)s)")
    number("--workers", type=_count_or_none, default=0, help="of each loader (%(default)s)")
    parser.add_argument("--latency", default="30ms", help="of every request (%(default)s)")
    parser.add_argument("--bandwidth", default="10MB/s", help="of the origin (%(default)s)")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    return parser


def _count(text: str, least: int = 1) -> int:
    if not text.isdecimal() or not least <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"`{text}`; give a number from {least} to 1000000")
    return int(text)


def _count_or_none(text: str) -> int:
    return _count(text, least=0)


def _refused(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return 2


def _demonstrate(told: argparse.Namespace) -> dict[str, Any]:
    """All three jobs."""
    import torch

    from forebay.demo import training

    jobs = list[dict[str, Any]]()
    data_bytes = told.items * pictures.ITEM_BYTES
    test = training.test_set(*pictures.drawn(_TEST_PICTURES, _SEED + 1))
    with tempfile.TemporaryDirectory(prefix="forebay-demo-") as directory, ExitStack() as stack:
        place = Path(directory)
        _say(f"making {told.items} pictures, {data_bytes / 1e6:.1f} MB")
        pictures.write(place / "origin/bucket/train", place / "shapes.csv", told.items, seed=_SEED)
        _say(f"an origin {told.latency} away sends {told.bandwidth}; building the digest")
        shape = (f"--latency={told.latency}", f"--bandwidth={told.bandwidth}")
        origin = stack.enter_context(stage.origin(place / "origin", *shape))
        digest, columns = place / "train.digest", place / "shapes.csv"
        origin.build_digest("s3://bucket/train", digest, "--columns", str(columns))

        def train(name: str, kind: type[forebay.Dataset], node: Path | None, seed: int) -> None:
            dataset = kind(
                digest,
                transform=training.decoded,
                columns=["shape"],
                cache=node,
                storage_options=origin.options,
            )
            loader = forebay.DataLoader(
                dataset,
                batch_size=told.batch_size,
                shuffle=True,
                num_workers=told.workers,
                generator=torch.Generator().manual_seed(seed),
            )
            jobs.append(_job(name, loader, origin, test, seed, told.epochs))

        train("straight from the origin", training.Straight, None, seed=1)
        node = stack.enter_context(stage.node(place / "node", _ROOM * data_bytes + _DEVICE))
        train("through forebay", forebay.Dataset, node, seed=1)
        train("another job, after it", forebay.Dataset, node, seed=2)
    return {"items": told.items, "bytes": data_bytes, "jobs": jobs}


def _job(
    name: str,
    loader: forebay.DataLoader,
    origin: stage.Origin,
    test: Any,
    seed: int,
    epochs: int,
) -> dict[str, Any]:
    """Train with one loader."""
    from forebay.demo import training

    done = list[dict[str, Any]]()
    sent = origin.bytes_sent()

    def progress(batch: int, loss: float) -> None:
        of = f"epoch {len(done) + 1} of {epochs}, batch {batch} of {len(loader)}"
        _say(f"{name}: {of}, loss {loss:.3f}", passing=True)

    for epoch in training.epochs(loader, test, epochs, seed, progress):
        before, sent = sent, origin.bytes_sent()
        done.append({**dataclasses.asdict(epoch), "origin_bytes": sent - before})
        _say(
            f"{name}: epoch {len(done)} of {epochs} took {epoch.seconds:.1f} s"
            f" ({epoch.waited_seconds:.1f} s of it waiting), accuracy {epoch.accuracy:.1%}"
        )
    return {"job": name, "seconds": sum(one["seconds"] for one in done), "epochs": done}


def _table(found: dict[str, Any]) -> str:
    """For people: a row for each epoch, and what all of it took."""
    rows = [("", "epoch", "time", "waiting", "samples/s", "origin sent", "loss", "accuracy")]
    for job in found["jobs"]:
        for number, epoch in enumerate(job["epochs"], 1):
            rows.append(
                (
                    job["job"] if number == 1 else "",
                    str(number),
                    f"{epoch['seconds']:.1f} s",
                    f"{epoch['waited_seconds'] / epoch['seconds']:.0%}",
                    f"{epoch['samples'] / epoch['seconds']:.0f}",
                    f"{epoch['origin_bytes'] / 1e6:.1f} MB",
                    f"{epoch['loss']:.3f}",
                    f"{epoch['accuracy']:.1%}",
                )
            )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    straight, first, second = (job["seconds"] for job in found["jobs"])
    waited = [
        f"{sum(epoch['waited_seconds'] for epoch in job['epochs']):.1f} s" for job in found["jobs"]
    ]
    lines += [
        "",
        f"{straight:.1f} s straight from the origin; {first:.1f} s through an empty cache"
        f" ({straight / first:.1f} x as fast); {second:.1f} s for the next job"
        f" ({straight / second:.1f} x). Of these {', '.join(waited)} were waiting for data.",
    ]
    return "\n".join(lines)


def _say(text: str, *, passing: bool = False) -> None:
    """On standard error; what passes is for a terminal, and is written over."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="" if passing else "\n", file=sys.stderr, flush=True)
    elif not passing:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
