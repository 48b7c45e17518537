"""Ranks: the processes among which a job divides an epoch.

They are read when an epoch begins. Before that they may be unknown: frameworks start ranks, or
initialise ``torch.distributed``, after the loader was made.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from typing import Any, SupportsIndex

from forebay._runtime.gpus import checked_gpus, gpus_of_job


def ranks() -> tuple[int, int]:
    """The rank of this process, and the number of ranks.

    From ``torch.distributed`` if it is initialised, else from ``RANK`` and ``WORLD_SIZE``, which
    ``torchrun`` and similar launchers set, else from the variables of ``srun``; else 0 of 1.

    Raises
    ------
    ValueError
        There are several ranks, and which one this is cannot be known.
    """
    rank, world = _found()
    if rank is None:
        raise ValueError(
            f"WORLD_SIZE={world} without RANK: this process cannot know its part of the items; call"
            " torch.distributed.init_process_group first, set RANK, or give rank= and world_size="
        )
    return rank, world


def ranks_if_known() -> tuple[int, int]:
    """Like :func:`ranks`; 0 of 1 while the rank is unknown."""
    rank, world = _found()
    return (0, 1) if rank is None else (rank, world)


def launched_name(number: int) -> str | None:
    """The name of dataset ``number`` of an unnamed job that ``torchrun`` or a similar launcher has
    started, the same on all ranks; ``None`` without a launcher.

    A launcher gives all ranks the address of the first, and no two jobs listen there at a time. To
    a loopback address, the machine's name is added.
    """
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not address or not port or "WORLD_SIZE" not in os.environ:
        return None
    machine = socket.gethostname() if address in _LOOPBACK else ""
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    identity = "\0".join((address, port, machine, run, str(os.getuid())))
    return f"job-{hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()}-{number}"


#: Addresses that every machine has.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _found() -> tuple[int | None, int]:
    """The rank, or ``None`` if it is unknown, and the number of ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for names in VARIABLES:
        rank, world = (os.environ.get(name) for name in names)
        if world is None:
            continue
        try:
            if rank is None:
                if int(world) > 1 and names[0] == "RANK":
                    return None, int(world)
                continue
            return _checked(int(rank), int(world))
        except ValueError:
            raise ValueError(
                f"{names[0]}={rank}, {names[1]}={world} are not a rank and a number of ranks; ranks"
                " count from 0"
            ) from None
    return 0, 1


#: Variables of launchers: the rank, and the number of ranks. ``SLURM_NTASKS`` is set in a batch
#: script as well, which is one process.
VARIABLES = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


class Ranks:
    """The rank of a loader, the number of ranks and of their GPUs.

    Each is given, or found when an epoch begins.
    """

    def __init__(
        self, rank: int | None, world_size: int | None, gpus: SupportsIndex | None = None
    ) -> None:
        self._gpus = checked_gpus(gpus)
        if (rank is None) != (world_size is None):
            raise ValueError(f"rank={rank}, world_size={world_size}; give both or neither")
        self._given: tuple[int, int] | None = None
        if rank is not None and world_size is not None:
            self._given = _checked(rank, world_size)
        else:
            _found()  # invalid variables are an error at once
        #: What the process that made this copy had found.
        self._copied = (0, 1)
        #: The ranks among which items were divided.
        self._used: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A spawned worker has no ``torch.distributed``: it gets what its parent has found."""
        found = _found()
        copied = self._copied if found[0] is None or found[1] == 1 else found
        return {**self.__dict__, "_copied": copied}

    @property
    def now(self) -> tuple[int, int]:
        """The rank and the number of ranks."""
        if self._given is not None:
            return self._given
        found = ranks()
        return self._copied if found[1] == 1 else found

    @property
    def known(self) -> tuple[int, int]:
        """Like ``now``; 0 of 1 while the rank is unknown."""
        return (0, 1) if self._given is None and _found()[0] is None else self.now

    @property
    def world(self) -> int:
        """The number of ranks, which is known before the rank is."""
        if self._given is not None:
            return self._given[1]
        return max(_found()[1], self._copied[1])

    @property
    def gpus(self) -> int:
        """GPUs that wait when the job waits for data, those of all ranks together."""
        return gpus_of_job(self._gpus, self.world)

    def begin(self) -> tuple[int, int]:
        """The rank and the number of ranks of an epoch that begins.

        Raises
        ------
        RuntimeError
            Items were divided among other ranks before.
        """
        now = self.now
        if self._used not in (None, now):
            assert self._used is not None
            raise RuntimeError(
                f"the loader has given items as rank {self._used[0]} of {self._used[1]}, and this"
                f" is rank {now[0]} of {now[1]} now; make a new loader, and continue with"
                " load_state_dict"
            )
        self._used = now
        return now


def _checked(rank: int, world: int) -> tuple[int, int]:
    if not 0 <= rank < world:
        raise ValueError(f"there is no rank {rank} of {world}; ranks count from 0")
    return rank, world
