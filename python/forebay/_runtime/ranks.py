"""Which of a job's processes this is."""

from __future__ import annotations

import os
import sys


def ranks() -> tuple[int, int]:
    """This process's rank, and how many there are.

    As ``torch.distributed`` says, once it is initialised; else ``RANK`` and ``WORLD_SIZE``, which
    ``torchrun`` and its like set.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world is None:
        return 0, 1
    try:
        return checked(int(rank), int(world))
    except ValueError:
        raise ValueError(
            f"RANK={rank} and WORLD_SIZE={world} make no sense; ranks count from 0, and there is at"
            " least one"
        ) from None


def checked(rank: int, world: int) -> tuple[int, int]:
    """The same, if there is such a rank."""
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world}: ranks count from 0")
    return rank, world
