"""Ranks: the processes among which a job divides an epoch."""

from __future__ import annotations

import os
import sys


def ranks() -> tuple[int, int]:
    """The rank of this process, and the number of ranks.

    From ``torch.distributed`` if it is initialised, else from ``RANK`` and ``WORLD_SIZE``, which
    ``torchrun`` and similar launchers set; else 0 of 1.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world is None:
        return 0, 1
    try:
        return _checked(int(rank), int(world))
    except ValueError:
        raise ValueError(
            f"RANK={rank}, WORLD_SIZE={world} are not a rank and a number of ranks; ranks count"
            " from 0"
        ) from None


def given_or_found(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """The arguments ``rank`` and ``world_size``, or :func:`ranks` if both are ``None``."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank}, world_size={world_size}; give both or neither")
    return ranks() if rank is None or world_size is None else _checked(rank, world_size)


def _checked(rank: int, world: int) -> tuple[int, int]:
    if not 0 <= rank < world:
        raise ValueError(f"there is no rank {rank} of {world}; ranks count from 0")
    return rank, world
