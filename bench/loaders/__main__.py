"""Runs the comparison: environments, items, origins, then one scenario after the other.

Prints a line of JSON for every row (with its measured pairs), for the other measurements of each
side, and for every peer that does not work, with its error. ``cargo xtask bench loaders`` evaluates
them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from loaders import items, scenarios
from loaders.comparison import Comparison, progress, report
from loaders.environments import Unavailable, python_of
from loaders.items import Items
from loaders.origin import BUCKET, SHAPE, Origin, serving
from loaders.peers import ALL, OURS, Peer
from loaders.processes import Loader, prepare

#: Items of the large and of the small dataset, in a full and in a quick run.
COUNTS, COUNTS_QUICK = (4000, 1600), (2000, 800)


def main() -> None:
    arguments = parsed()
    chosen = [one for one in scenarios.ALL if not arguments.only or one.key in arguments.only]
    wanted = {peer for one in chosen for peer in (OURS, *one.field)}
    if arguments.against:
        wanted &= {peer for peer in ALL if peer.file in arguments.against} | {OURS}
    target = arguments.target.absolute()
    with ExitStack() as stack:
        workdir = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=target)))
        counts = COUNTS_QUICK if arguments.quick else COUNTS
        progress(f"making {counts[0]} + {counts[1]} items")
        bucket = workdir / "origin" / BUCKET
        all_items = items.make(bucket / "items", counts[0])
        few_items = items.make(bucket / "few", counts[1])
        unshaped = stack.enter_context(serving(workdir / "origin"))
        shaped = stack.enter_context(serving(workdir / "origin", *SHAPE))
        loaders = dict[Peer, Loader]()
        for peer in (peer for peer in ALL if peer in wanted):
            loader = start(peer, target, workdir, (all_items, few_items), unshaped)
            if loader is not None:
                stack.callback(loader.end)
                loaders[peer] = loader
        comparison = Comparison(
            workdir, loaders, (unshaped, shaped), (all_items, few_items), arguments.quick
        )
        for scenario in chosen:
            began = time.monotonic()
            comparison.run(scenario)
            progress(f"{scenario.title}: took {time.monotonic() - began:.0f} s")


def start(
    peer: Peer, target: Path, workdir: Path, datasets: tuple[Items, Items], origin: Origin
) -> Loader | None:
    """Start a loader and write its format; ``None`` if it does not work here."""
    progress(f"{peer.name}: environment, and items in its format")
    loader: Loader | None = None
    try:
        loader = Loader(peer, python_of(peer, target), workdir)
        for dataset in datasets:
            prepare(loader, dataset, origin)
        return loader
    except Unavailable as error:
        progress(f"  {peer.name} is not compared: {error}")
        report("absent", row="all", peer=peer.name, error=str(error))
        if loader is not None:
            loader.end()
        return None


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="loaders", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer pairs and less data")
    parser.add_argument(
        "--target", type=Path, default=Path("target"), help="directory for environments and items"
    )
    keys = [scenario.key for scenario in scenarios.ALL]
    parser.add_argument("--only", action="append", choices=keys, help="a scenario; may be repeated")
    files = [peer.file for peer in ALL if peer != OURS]
    parser.add_argument("--against", action="append", choices=files, help="a peer; may be repeated")
    return parser.parse_args()


if __name__ == "__main__":
    main()
