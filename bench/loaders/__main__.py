"""Runs the comparison: environments, items, origins, then one scenario after the other.

Prints a line of JSON for every row (its pairs as they were measured), for what else was measured of
each side, and for every peer that could not take part, with its error. ``cargo xtask bench
loaders`` evaluates them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from loaders import items, scenarios
from loaders.contest import Contest, note, tell
from loaders.environments import Unavailable, python_of
from loaders.items import Items
from loaders.origin import BUCKET, SHAPE, Origin, serving
from loaders.peers import ALL, OURS, Peer
from loaders.team import Loader, prepare

#: Items in all, and in the part that some scenarios make do with; and both in a quick run.
COUNTS, COUNTS_QUICK = (4000, 1600), (2000, 800)


def main() -> None:
    arguments = parsed()
    chosen = [one for one in scenarios.ALL if not arguments.only or one.key in arguments.only]
    wanted = {peer for one in chosen for peer in (OURS, *one.field)}
    if arguments.against:
        wanted &= {peer for peer in ALL if peer.file in arguments.against} | {OURS}
    target = arguments.target.absolute()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=target)))
        counts = COUNTS_QUICK if arguments.quick else COUNTS
        note(f"making {counts[0]} + {counts[1]} items")
        bucket = place / "origin" / BUCKET
        all_items = items.make(bucket / "items", counts[0])
        few_items = items.make(bucket / "few", counts[1])
        as_it_is = stack.enter_context(serving(place / "origin"))
        shaped = stack.enter_context(serving(place / "origin", *SHAPE))
        loaders = dict[Peer, Loader]()
        for peer in (peer for peer in ALL if peer in wanted):
            loader = started(peer, target, place, (all_items, few_items), as_it_is)
            if loader is not None:
                stack.callback(loader.end)
                loaders[peer] = loader
        contest = Contest(
            place, loaders, (as_it_is, shaped), (all_items, few_items), arguments.quick
        )
        for scenario in chosen:
            began = time.monotonic()
            contest.run(scenario)
            note(f"{scenario.title}: took {time.monotonic() - began:.0f} s")


def started(
    peer: Peer, target: Path, place: Path, datasets: tuple[Items, Items], origin: Origin
) -> Loader | None:
    """A loader, ready and with its format written; none, if it does not work here."""
    note(f"{peer.name}: its environment, and the items in its format")
    loader: Loader | None = None
    try:
        loader = Loader(peer, python_of(peer, target), place)
        for dataset in datasets:
            prepare(loader, dataset, origin)
        return loader
    except Unavailable as error:
        note(f"  {peer.name} is not compared: {error}")
        tell("absent", row="all", peer=peer.name, error=str(error))
        if loader is not None:
            loader.end()
        return None


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="loaders", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer pairs and less data")
    parser.add_argument("--target", type=Path, default=Path("target"), help="where all of it lies")
    keys = [scenario.key for scenario in scenarios.ALL]
    parser.add_argument("--only", action="append", choices=keys, help="one scenario, or several")
    files = [peer.file for peer in ALL if peer != OURS]
    parser.add_argument("--against", action="append", choices=files, help="one peer, or several")
    return parser.parse_args()


if __name__ == "__main__":
    main()
