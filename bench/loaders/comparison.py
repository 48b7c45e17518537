"""How it is compared: both sides in adjacent pairs, taking turns at who goes first.

Machines are noisy, so only pairs count. Warm, both sides stay open and run epoch after epoch; cold,
each measurement has processes and a cache of its own. A peer that fails is out of this scenario,
with its error; we may fail as well, and are then out of it with ours.
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
from loaders.limits import why_not_capped
from loaders.origin import Origin
from loaders.peers import OURS, Peer, Task
from loaders.scenarios import WORKERS, Scenario
from loaders.team import Epoch, Loader, Team

#: What the page cache may hold of the dataset, where it is capped; but so many bytes at least,
#: since a process that needs a little more than it was seen to need would be killed.
PAGES_SHARE, PAGES_MIN = 0.15, 32_000_000
#: Epochs by which a side finds out how many workers suit it.
TRIES = 3

Measure = Callable[[], Epoch]


@dataclass
class Side:
    """One loader in one scenario: what it is measured by, and what was measured."""

    peer: Peer
    workers: int
    measure: Measure
    epochs: list[Epoch] = field(default_factory=list)

    def epoch(self) -> float:
        """Samples per second."""
        self.epochs.append(self.measure())
        return self.epochs[-1].rate


class Contest:
    """All loaders that work, over the same items and origins."""

    def __init__(
        self,
        place: Path,
        loaders: Mapping[Peer, Loader],
        origins: tuple[Origin, Origin],
        items: tuple[Items, Items],
        is_quick: bool,
    ) -> None:
        self.place, self.loaders, self.is_quick = place, loaders, is_quick
        #: As it is, and shaped.
        self.origins = origins
        #: All, and a part.
        self.items = items
        self._numbers = count()

    def run(self, scenario: Scenario) -> None:
        """Measure a scenario and print what came of it."""
        problem = why_not_capped() if scenario.is_capped else None
        if problem is not None:
            tell("absent", row=scenario.title, peer="all", error=problem)
            return
        with ExitStack() as stack:
            try:
                ours = stack.enter_context(self._side(scenario, OURS))
            except (Unavailable, KeyError) as error:
                tell("absent", row=scenario.title, peer=OURS.name, error=str(error))
                return
            for peer in scenario.field:
                if peer in self.loaders:
                    self._against(scenario, ours, peer)
            self._summarise(scenario, ours)

    def _against(self, scenario: Scenario, ours: Side, peer: Peer) -> None:
        pairs = scenario.pairs(peer, self.is_quick)
        note(f"{scenario.title}: {pairs} pairs against {peer.name}")
        try:
            with self._side(scenario, peer) as theirs:
                measured = _in_pairs(pairs, ours.epoch, theirs.epoch)
                self._summarise(scenario, theirs)
        except Unavailable as error:
            note(f"  {peer.name}: {error}")
            tell("absent", row=scenario.title, peer=peer.name, error=str(error))
            return
        is_judged = peer not in scenario.unjudged
        tell(
            "row",
            row=scenario.title,
            unit="samples/s",
            against=peer.name,
            pairs=measured,
            target=scenario.target if is_judged else None,
            best_of=scenario.is_against_the_best and is_judged,
        )

    @contextmanager
    def _side(self, scenario: Scenario, peer: Peer) -> Iterator[Side]:
        """A side with as many workers as suit it, if it may choose."""
        choice = WORKERS if scenario.workers is None else (scenario.workers,)
        with ExitStack() as stack:
            tried: list[tuple[float, Side, ExitStack]] = []
            problem: Unavailable | None = None
            for workers in choice:
                mine = stack.enter_context(ExitStack())
                try:
                    side = Side(peer, workers, self._measured(scenario, peer, workers, mine))
                    tries = range(TRIES if len(choice) > 1 else 0)
                    rates = [side.measure().rate for _ in tries]
                    tried.append((statistics.median(rates or [0.0]), side, mine))
                except Unavailable as unavailable:
                    problem = unavailable
                    mine.close()
            if problem is not None and not tried:
                raise problem
            best = max(tried, key=lambda one: one[0])
            for one in tried:
                if one is not best:
                    one[2].close()
            yield best[1]

    def _measured(self, scenario: Scenario, peer: Peer, workers: int, stack: ExitStack) -> Measure:
        """What one measurement is; whatever has to be open for it is closed with the stack."""
        if scenario.is_cold:

            def cold() -> Epoch:
                with self._team(scenario, peer, workers) as team:
                    return team.epoch()

            return cold
        team = stack.enter_context(self._team(scenario, peer, workers))
        if peer.patience is None:
            team.verify()
        if scenario.is_capped:
            team.cap(self._pages(scenario))
        team.epoch()
        return team.epoch

    def _team(self, scenario: Scenario, peer: Peer, workers: int) -> Team:
        items = self._items(scenario)
        limit = None if scenario.cache_share == 1.0 else int(items.size * scenario.cache_share)
        number = f"{next(self._numbers)}"
        task = Task(
            origin=self.origins[scenario.is_shaped],
            items=items,
            form=scenario.form,
            workers=workers,
            cache=self.place / number,
            cache_limit=limit,
            memory_limit=self._pages(scenario) if scenario.is_capped else None,
            job=0,
        )
        pages = number if scenario.is_capped else None
        return Team(self.loaders[peer], task, scenario.jobs, pages)

    def _items(self, scenario: Scenario) -> Items:
        return self.items[scenario.is_small]

    def _pages(self, scenario: Scenario) -> int:
        return max(int(self._items(scenario).size * PAGES_SHARE), PAGES_MIN)

    def _summarise(self, scenario: Scenario, side: Side) -> None:
        """What is no rate, as medians."""
        if not side.epochs:
            return
        items = self._items(scenario)

        def middle(figure: Callable[[Epoch], float]) -> float:
            return statistics.median(map(figure, side.epochs))

        # An epoch that was broken off has read less; what it read each sample for is what counts.
        share = items.count * scenario.jobs
        tell(
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


def tell(kind: str, **what: Any) -> None:
    """One line for whoever judges."""
    print(json.dumps({"kind": kind, **what}), flush=True)


def note(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)
