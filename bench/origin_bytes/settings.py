"""Settings of a measurement, its results, and the targets."""

from __future__ import annotations

from dataclasses import dataclass

#: Chunks of a dataset, and the number that rotates if several jobs share it.
CHUNKS, ROTATING = 10, 2
#: Largest ratio of origin bytes to the lower bound: at equal rates, and up to 4 times apart.
EQUAL, APART = 1.02, 1.15


@dataclass(frozen=True)
class Setting:
    """Number of jobs, size of the cache, and rates."""

    jobs: int
    #: Fraction of the dataset that the node can keep. Its capacity is larger by its free space.
    cache: float
    #: Time per batch of the slowest job, as a multiple of the fastest; others are in between.
    spread: float = 1.0
    #: Epochs of the leading job, after which all jobs stop.
    epochs: int = 3
    batch: int = 16
    #: Seconds of computing per batch of the fastest job.
    compute: float = 0.005
    workers: int = 0
    #: Memory of an agent. A larger one would be a second cache, which the bound does not count.
    agent_memory: str = "8MiB"

    def compute_of(self, job: int) -> float:
        """Seconds of computing per batch of a job. Job 0 is the fastest."""
        exponent = job / max(1, self.jobs - 1)
        return float(self.compute * self.spread**exponent)

    @property
    def bound(self) -> float:
        """Lower bound of origin bytes per turn, as a fraction of the dataset.

        One job reads everything that is not pinned. Several jobs also read the rotating chunks.
        """
        if self.jobs == 1 or self.cache >= 1.0:
            return 1.0 - self.cache
        return min(1.0, 1.0 - self.cache + ROTATING / CHUNKS)

    @property
    def target(self) -> float:
        """Largest ratio of origin bytes to the bound."""
        return EQUAL if self.spread == 1.0 else APART


@dataclass(frozen=True)
class Window:
    """Origin bytes of some epochs, as fractions of the dataset."""

    #: Epochs of the fastest job, which may be fractional.
    turns: float
    #: By the origin's count.
    origin: float
    #: By the agents' counts, by cause; `claimed` is the rest.
    causes: dict[str, float]
    #: Fraction of the dataset that was pinned at the start.
    pinned: float

    @property
    def counted(self) -> float:
        """Origin bytes per turn, without probes."""
        return (self.origin - self.causes["probe"]) / self.turns

    @property
    def probed(self) -> float:
        """Origin bytes of probes per turn."""
        return self.causes["probe"] / self.turns

    @property
    def per_turn(self) -> dict[str, float]:
        """Origin bytes per turn, by cause."""
        return {cause: share / self.turns for cause, share in self.causes.items()}


@dataclass(frozen=True)
class Outcome:
    """Result of a measurement."""

    setting: Setting
    #: The first epoch.
    first: Window
    #: All other epochs.
    later: Window
    #: The node's reason for its keep set.
    why: str

    def is_met(self, slack: float = 0.0) -> bool:
        """Whether the targets are met, with a tolerance of ``slack`` datasets."""
        target, bound = self.setting.target, self.setting.bound
        return self.first.counted <= target + slack and self.later.counted <= target * bound + slack
