"""What is compared: each scenario is one condition, a field of peers, and what is aimed at.

Targets are those of the design's rows about samples per second. "The best" of several rivals is
found out by measuring: each is paired with us, and the one that does best against us is the judge.
"""

from __future__ import annotations

from dataclasses import dataclass

from loaders.peers import BOTO3, FILES, LITDATA, RIVALS, WEBDATASET, Peer

#: Pairs for rows with a target, and for the others; and both in a quick run.
PAIRS, PAIRS_OPEN, PAIRS_QUICK, PAIRS_OPEN_QUICK = 15, 5, 5, 3
#: What each side is tried with where it may choose.
WORKERS = (0, 2)


@dataclass(frozen=True)
class Scenario:
    """One condition."""

    #: For ``--only``.
    key: str
    #: For people.
    title: str
    field: tuple[Peer, ...]
    form: str = "bytes"
    #: ``None``: whatever suits each side best, found by trial.
    workers: int | None = None
    jobs: int = 1
    is_shaped: bool = False
    #: Every epoch with an empty cache, and with the making of the loader.
    is_cold: bool = False
    #: How much of the dataset a cache may hold.
    cache_share: float = 1.0
    #: Whether the page cache is capped.
    is_capped: bool = False
    #: Our rate ÷ theirs, at least: of every peer, or of the best of the rivals.
    target: float | None = None
    is_against_the_best: bool = False
    #: Whether a part of the items has to do, because all would take too long.
    is_small: bool = False

    def pairs(self, peer: Peer, is_quick: bool) -> int:
        """How often it is measured."""
        has_target = self.target is not None and peer not in self.unjudged
        if is_quick:
            return PAIRS_QUICK if has_target else PAIRS_OPEN_QUICK
        return PAIRS if has_target else PAIRS_OPEN

    @property
    def unjudged(self) -> tuple[Peer, ...]:
        """Who is measured for the record: the best is sought among the rivals."""
        if not self.is_against_the_best:
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
        is_against_the_best=True,
    ),
    Scenario(
        "capped-views",
        "warm, views, page cache capped",
        (LITDATA, WEBDATASET),
        "views",
        is_capped=True,
        target=2.0,
        is_against_the_best=True,
    ),
    Scenario(
        "cold",
        "cold, bytes, origin as it is",
        (*RIVALS, BOTO3),
        is_cold=True,
        target=1.0,
        is_against_the_best=True,
    ),
    Scenario(
        "cold-shaped",
        "cold, bytes, shaped origin",
        (*RIVALS, BOTO3),
        is_shaped=True,
        is_cold=True,
        target=1.0,
        is_against_the_best=True,
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
        # All items: of a part of them, a fifth is little more than the loaders have under way.
        cache_share=0.2,
    ),
)
