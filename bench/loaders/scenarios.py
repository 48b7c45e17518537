"""Scenarios: each is one condition, a list of peers, and a target.

Targets are those of the design for samples per second. Where the target is about the best of
several rivals, each is paired with forebay, and the fastest rival counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from loaders.peers import BOTO3, FILES, LITDATA, RIVALS, WEBDATASET, Peer

#: Pairs of rows with a target and of others, in a full and in a quick run.
PAIRS, PAIRS_OPEN, PAIRS_QUICK, PAIRS_OPEN_QUICK = 15, 5, 5, 3
#: Numbers of workers that are tried where the scenario leaves it open.
WORKERS = (0, 2)


@dataclass(frozen=True)
class Scenario:
    """One condition."""

    #: Name for ``--only``.
    key: str
    #: Name in reports.
    title: str
    field: tuple[Peer, ...]
    form: str = "bytes"
    #: ``None``: the number that is fastest for each side, found by trial.
    workers: int | None = None
    jobs: int = 1
    is_shaped: bool = False
    #: Every epoch has an empty cache and includes the construction of the loader.
    is_cold: bool = False
    #: Fraction of the dataset that fits into the cache.
    cache_share: float = 1.0
    #: Whether the page cache is capped.
    is_capped: bool = False
    #: Smallest ratio of forebay's rate to the peer's: of every peer, or of the best rival.
    target: float | None = None
    is_against_best: bool = False
    #: Whether the small dataset is used, because the large one would take too long.
    is_small: bool = False

    def pairs(self, peer: Peer, is_quick: bool) -> int:
        """Number of pairs."""
        has_target = self.target is not None and peer not in self.untargeted
        if is_quick:
            return PAIRS_QUICK if has_target else PAIRS_OPEN_QUICK
        return PAIRS if has_target else PAIRS_OPEN

    @property
    def untargeted(self) -> tuple[Peer, ...]:
        """Peers without a target: the best is chosen among the rivals."""
        if not self.is_against_best:
            return ()
        return tuple(peer for peer in self.field if peer not in RIVALS)


ALL = (
    Scenario("in-process", "warm, bytes, no workers", (FILES,), workers=0, target=0.8),
    Scenario("in-process-views", "warm, views, no workers", (FILES,), "views", 0, target=0.8),
    Scenario("workers", "warm, bytes, two workers", (FILES,), workers=2, target=3.0),
    Scenario("workers-views", "warm, views, two workers", (FILES,), "views", 2, target=3.0),
    Scenario("collated", "warm, tensors, two workers", (FILES,), "tensors", 2, target=1.0),
    Scenario(
        "capped",
        "warm, bytes, page cache capped",
        (*RIVALS, BOTO3, FILES),
        is_capped=True,
        target=2.0,
        is_against_best=True,
    ),
    Scenario(
        "capped-views",
        "warm, views, page cache capped",
        (LITDATA, WEBDATASET),
        "views",
        is_capped=True,
        target=2.0,
        is_against_best=True,
    ),
    Scenario(
        "cold",
        "cold, bytes, unshaped origin",
        (*RIVALS, BOTO3),
        is_cold=True,
        target=1.0,
        is_against_best=True,
    ),
    Scenario(
        "cold-shaped",
        "cold, bytes, shaped origin",
        (*RIVALS, BOTO3),
        is_shaped=True,
        is_cold=True,
        target=1.0,
        is_against_best=True,
    ),
    Scenario(
        "decoded",
        "warm, decoded, page cache capped",
        (*RIVALS, FILES),
        "decoded",
        workers=2,
        is_capped=True,
        is_small=True,
    ),
    Scenario(
        "decoded-cold",
        "cold, decoded, shaped origin",
        RIVALS,
        "decoded",
        workers=2,
        is_shaped=True,
        is_cold=True,
        is_small=True,
    ),
    Scenario(
        "fifth",
        "later epochs, cache of 20 %, shaped origin",
        (*RIVALS, BOTO3),
        workers=2,
        is_shaped=True,
        cache_share=0.2,
    ),
    Scenario(
        "four",
        "four jobs, warm, shaped origin",
        (*RIVALS, BOTO3),
        workers=1,
        jobs=4,
        is_shaped=True,
        is_small=True,
    ),
    Scenario(
        "four-cold",
        "four jobs, cold, shaped origin",
        (*RIVALS, BOTO3),
        workers=1,
        jobs=4,
        is_shaped=True,
        is_cold=True,
        is_small=True,
    ),
    Scenario(
        "four-fifth",
        "four jobs, later epochs, cache of 20 %, shaped origin",
        (*RIVALS, BOTO3),
        workers=1,
        jobs=4,
        is_shaped=True,
        # The large dataset: a fifth of the small one is little more than loaders have in flight.
        cache_share=0.2,
    ),
)
