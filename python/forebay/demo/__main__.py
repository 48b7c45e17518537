"""Train a small network three times on data behind a slow origin, and compare the cost.

The first job reads directly from the origin. The second uses forebay with an empty cache. The third
is another job with another seed, which uses what the second has cached. The pictures are generated;
the S3 server, the node, PyTorch's loader and the network are real.
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
from forebay.demo import pictures, services

_EXAMPLES = """\
examples:
  python -m forebay.demo
  python -m forebay.demo --epochs 5 --latency 50ms
  python -m forebay.demo --format json | jq '.jobs[] | .seconds'

The demo takes one or two minutes on two idle cores, most of it computing.
It works in a temporary directory, which it removes at the end.
`forebay demo` shows many jobs on a cache much smaller than their data.
"""

_TEST_PICTURES = 600
#: Capacity of the node: twice the data, so that everything fits, and the device's overhead.
_DATA_FACTOR, _DEVICE_BYTES = 2, 16 << 20
_SEED = 7


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    # SIGTERM also removes the temporary directory.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        import torch  # noqa: F401
    except ImportError:
        return _fail("the demo needs PyTorch; run `pip install 'forebay[torch]'`")
    try:
        results = _run(options)
    except KeyboardInterrupt:
        print("\ninterrupted; temporary files were removed", file=sys.stderr)
        return 130
    except (forebay.ForebayError, OSError) as problem:
        return _fail(str(problem))
    print(json.dumps(results, indent=2) if options.format == "json" else _table(results))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m forebay.demo",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--items", type=_count, default=3000, help="generate N pictures of 12 kB (%(default)s)")
    add("--epochs", type=_count, default=3, help="train N epochs per job (%(default)s)")
    add("--batch-size", type=_count, default=50, help="put N pictures in a batch (%(default)s)")
    add("--workers", type=_count_or_zero, default=0, help="use N workers per job (%(default)s)")
    add("--latency", default="30ms", help="delay every request to the origin (%(default)s)")
    add("--bandwidth", default="10MB/s", help="limit the origin's bandwidth (%(default)s)")
    add(
        "--format",
        choices=("text", "json"),
        default="text",
        help="print text or JSON (%(default)s)",
    )
    return parser


def _count(text: str, least: int = 1) -> int:
    if not text.isdecimal() or not least <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"`{text}`; give a number from {least} to 1000000")
    return int(text)


def _count_or_zero(text: str) -> int:
    return _count(text, least=0)


def _fail(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 2


def _run(options: argparse.Namespace) -> dict[str, Any]:
    """Run all three jobs."""
    import torch

    from forebay.demo import training

    jobs = list[dict[str, Any]]()
    data_bytes = options.items * pictures.ITEM_BYTES
    test = training.test_set(*pictures.generate(_TEST_PICTURES, _SEED + 1))
    with tempfile.TemporaryDirectory(prefix="forebay-demo-") as directory, ExitStack() as stack:
        root = Path(directory)
        _log(f"generating {options.items} pictures, {data_bytes / 1e6:.1f} MB")
        pictures.write(root / "origin/bucket/train", root / "shapes.csv", options.items, seed=_SEED)
        _log(f"building the digest (origin: {options.latency} latency, {options.bandwidth})")
        shape = (f"--latency={options.latency}", f"--bandwidth={options.bandwidth}")
        origin = stack.enter_context(services.origin(root / "origin", *shape))
        digest, columns = root / "train.digest", root / "shapes.csv"
        origin.build_digest("s3://bucket/train", digest, "--columns", str(columns))

        def train(name: str, kind: type[forebay.Dataset], node: Path | None, seed: int) -> None:
            dataset = kind(
                digest,
                transform=training.decode,
                columns=["shape"],
                cache=node,
                storage_options=origin.options,
            )
            loader = forebay.DataLoader(
                dataset,
                batch_size=options.batch_size,
                shuffle=True,
                num_workers=options.workers,
                generator=torch.Generator().manual_seed(seed),
            )
            jobs.append(_train_job(name, loader, origin, test, seed, options.epochs))

        train("without forebay", training.UncachedDataset, None, seed=1)
        capacity = _DATA_FACTOR * data_bytes + _DEVICE_BYTES
        node = stack.enter_context(services.node(root / "node", capacity))
        train("with forebay, empty cache", forebay.Dataset, node, seed=1)
        train("next job, warm cache", forebay.Dataset, node, seed=2)
    return {"items": options.items, "bytes": data_bytes, "jobs": jobs}


def _train_job(
    name: str,
    loader: forebay.DataLoader,
    origin: services.Origin,
    test: Any,
    seed: int,
    epochs: int,
) -> dict[str, Any]:
    """Train with one loader; returns the measurements of its epochs."""
    from forebay.demo import training

    done = list[dict[str, Any]]()
    sent = origin.bytes_sent()

    def progress(batch: int, loss: float) -> None:
        position = f"epoch {len(done) + 1} of {epochs}, batch {batch} of {len(loader)}"
        _log(f"{name}: {position}, loss {loss:.3f}", is_transient=True)

    for epoch in training.epochs(loader, test, epochs, seed, progress):
        before, sent = sent, origin.bytes_sent()
        done.append({**dataclasses.asdict(epoch), "origin_bytes": sent - before})
        _log(
            f"{name}: epoch {len(done)} of {epochs} took {epoch.seconds:.1f} s"
            f" ({epoch.stall_seconds:.1f} s waiting for data), accuracy {epoch.accuracy:.1%}"
        )
    return {"job": name, "seconds": sum(one["seconds"] for one in done), "epochs": done}


def _table(results: dict[str, Any]) -> str:
    """The results as text: a row per epoch, and a summary."""
    rows = [("", "epoch", "waited", "of", "samples/s", "origin sent", "loss", "accuracy")]
    for job in results["jobs"]:
        for number, epoch in enumerate(job["epochs"], 1):
            rows.append(
                (
                    job["job"] if number == 1 else "",
                    str(number),
                    f"{epoch['stall_seconds']:.1f} s",
                    f"{epoch['seconds']:.1f} s",
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
    waits = [sum(epoch["stall_seconds"] for epoch in job["epochs"]) for job in results["jobs"]]
    totals = [job["seconds"] for job in results["jobs"]]
    lines += [
        "",
        f"Waiting for data: {waits[0]:.1f} s without forebay, {waits[1]:.1f} s with an empty cache,"
        f" {waits[2]:.1f} s for the next job.",
        f"In total, with the training itself: {totals[0]:.1f} s, {totals[1]:.1f} s"
        f" ({totals[0] / totals[1]:.1f} x as fast), {totals[2]:.1f} s"
        f" ({totals[0] / totals[2]:.1f} x).",
    ]
    return "\n".join(lines)


def _log(text: str, *, is_transient: bool = False) -> None:
    """Write to standard error; transient lines go to terminals only and are overwritten."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="" if is_transient else "\n", file=sys.stderr, flush=True)
    elif not is_transient:
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
