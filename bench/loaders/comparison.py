"""The comparison: both sides run in adjacent pairs, alternating which side goes first.

Machines are noisy, so only ratios of pairs are evaluated. In warm scenarios both sides stay open
and run epoch after epoch. In cold scenarios each measurement has new processes and an empty cache.
A side that fails is left out of the scenario, with its error.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from loaders.environments import Unavailable
from loaders.items import Items
from loaders.limits import cap_problem
from loaders.origin import Origin
from loaders.peers import OURS, Peer, Task
from loaders.processes import Epoch, JobGroup, Loader
from loaders.scenarios import WORKERS, Scenario

#: Where the page cache is capped: fraction of the dataset that fits into it, and its smallest size
#: in bytes. With less, a process that needs a little more than was measured would be killed.
PAGES_SHARE, PAGES_MIN = 0.15, 32_000_000
#: Epochs that each number of workers is tried with.
TRIES = 3

Measure = Callable[[], Epoch]


@dataclass
class Side:
    """One loader in one scenario, with its measurements."""

    peer: Peer
    workers: int
    measure: Measure
    epochs: list[Epoch] = field(default_factory=list)

    def epoch(self) -> float:
        """Samples per second."""
        self.epochs.append(self.measure())
        return self.epochs[-1].rate


class Comparison:
    """All loaders that work, over the same items and origins."""

    def __init__(
        self,
        workdir: Path,
        loaders: Mapping[Peer, Loader],
        origins: tuple[Origin, Origin],
        items: tuple[Items, Items],
        is_quick: bool,
    ) -> None:
        self.workdir, self.loaders, self.is_quick = workdir, loaders, is_quick
        #: Unshaped and shaped.
        self.origins = origins
        #: The large and the small dataset.
        self.items = items
        self._numbers = count()

    def run(self, scenario: Scenario) -> None:
        """Measure a scenario and print its rows."""
        problem = cap_problem() if scenario.is_capped else None
        if problem is not None:
            report("absent", row=scenario.title, peer="all", error=problem)
            return
        with ExitStack() as stack:
            try:
                ours = stack.enter_context(self._side(scenario, OURS))
            except (Unavailable, KeyError) as error:
                report("absent", row=scenario.title, peer=OURS.name, error=str(error))
                return
            for peer in scenario.field:
                if peer in self.loaders:
                    self._against(scenario, ours, peer)
            self._summarise(scenario, ours)

    def _against(self, scenario: Scenario, ours: Side, peer: Peer) -> None:
        pairs = scenario.pairs(peer, self.is_quick)
        progress(f"{scenario.title}: {pairs} pairs against {peer.name}")
        try:
            with self._side(scenario, peer) as theirs:
                measured = _in_pairs(pairs, ours.epoch, theirs.epoch)
                self._summarise(scenario, theirs)
        except Unavailable as error:
            progress(f"  {peer.name}: {error}")
            report("absent", row=scenario.title, peer=peer.name, error=str(error))
            return
        has_target = peer not in scenario.untargeted
        report(
            "row",
            row=scenario.title,
            unit="samples/s",
            against=peer.name,
            pairs=measured,
            target=scenario.target if has_target else None,
            best_of=scenario.is_against_best and has_target,
        )

    @contextmanager
    def _side(self, scenario: Scenario, peer: Peer) -> Iterator[Side]:
        """A side, with its fastest number of workers if the scenario leaves that open."""
        choice = WORKERS if scenario.workers is None else (scenario.workers,)
        with ExitStack() as stack:
            tried: list[tuple[float, Side, ExitStack]] = []
            problem: Unavailable | None = None
            for workers in choice:
                inner = stack.enter_context(ExitStack())
                try:
                    side = Side(peer, workers, self._measured(scenario, peer, workers, inner))
                    tries = range(TRIES if len(choice) > 1 else 0)
                    rates = [side.measure().rate for _ in tries]
                    tried.append((statistics.median(rates or [0.0]), side, inner))
                except Unavailable as unavailable:
                    problem = unavailable
                    inner.close()
            if problem is not None and not tried:
                raise problem
            best = max(tried, key=lambda one: one[0])
            for one in tried:
                if one is not best:
                    one[2].close()
            yield best[1]

    def _measured(self, scenario: Scenario, peer: Peer, workers: int, stack: ExitStack) -> Measure:
        """A function that measures one epoch. Its resources are closed with the stack."""
        if scenario.is_cold:

            def cold() -> Epoch:
                with self._group(scenario, peer, workers) as group:
                    return group.epoch()

            return cold
        group = stack.enter_context(self._group(scenario, peer, workers))
        if peer.time_limit is None:
            group.verify()
        if scenario.is_capped:
            group.cap(self._pages(scenario))
        group.epoch()
        return group.epoch

    def _group(self, scenario: Scenario, peer: Peer, workers: int) -> JobGroup:
        items = self._items(scenario)
        limit = None if scenario.cache_share == 1.0 else int(items.size * scenario.cache_share)
        number = f"{next(self._numbers)}"
        task = Task(
            origin=self.origins[scenario.is_shaped],
            items=items,
            form=scenario.form,
            workers=workers,
            cache=self.workdir / number,
            cache_limit=limit,
            memory_limit=self._pages(scenario) if scenario.is_capped else None,
            job=0,
        )
        pages = number if scenario.is_capped else None
        return JobGroup(self.loaders[peer], task, scenario.jobs, pages)

    def _items(self, scenario: Scenario) -> Items:
        return self.items[scenario.is_small]

    def _pages(self, scenario: Scenario) -> int:
        return max(int(self._items(scenario).size * PAGES_SHARE), PAGES_MIN)

    def _summarise(self, scenario: Scenario, side: Side) -> None:
        """Print the medians of a side's measurements."""
        if not side.epochs:
            return
        items = self._items(scenario)

        def middle(figure: Callable[[Epoch], float]) -> float:
            return statistics.median(map(figure, side.epochs))

        # An epoch that hit its time limit has read fewer samples: scale its bytes to a whole epoch.
        share = items.count * scenario.jobs
        report(
            "measure",
            row=scenario.title,
            loader=side.peer.name,
            workers=side.workers,
            rate=middle(lambda epoch: epoch.rate),
            origin_bytes=middle(lambda epoch: epoch.origin_bytes / epoch.samples * share),
            origin_share=middle(
                lambda epoch: epoch.origin_bytes / epoch.samples * share / items.size
            ),
            first_batch_seconds=middle(lambda epoch: epoch.first),
            cpu_seconds_per_1000=middle(lambda epoch: epoch.cpu / epoch.samples * 1000),
        )


def _in_pairs(
    pairs: int, ours: Callable[[], float], theirs: Callable[[], float]
) -> list[tuple[float, float]]:
    measured = []
    for pair in range(pairs):
        if pair % 2 == 0:
            first = ours()
            measured.append((first, theirs()))
        else:
            first = theirs()
            measured.append((ours(), first))
    return measured


def report(kind: str, **fields: Any) -> None:
    """Print one line of JSON for ``cargo xtask bench loaders``."""
    print(json.dumps({"kind": kind, **fields}), flush=True)


def progress(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)
