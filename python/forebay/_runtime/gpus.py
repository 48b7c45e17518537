"""GPUs: the number of devices that wait when a job waits for data.

Nodes give space to jobs by the GPU time that it saves. Devices are counted from the environment and
the kernel's files, never by CUDA: a process that has initialised CUDA cannot fork workers.
"""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import SupportsIndex

#: More are not a job's.
GPUS_MAX = 1_000_000
#: Environment variables that restrict the devices of a process.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
#: Directories with an entry for each device.
DEVICES = (Path("/proc/driver/nvidia/gpus"),)


def gpus_of_job(gpus: int | None, ranks: int) -> int:
    """The GPUs that were given; else the number of ranks; else this process's devices, or 1."""
    if gpus is None:
        return ranks if ranks > 1 else max(1, device_count())
    return gpus


def checked_gpus(gpus: SupportsIndex | None) -> int | None:
    """The argument ``gpus``.

    Raises
    ------
    ValueError
        It is not a number of GPUs.
    """
    if gpus is None:
        return None
    try:
        count = operator.index(gpus)
    except TypeError:
        raise ValueError(f"gpus={gpus!r} is not a number of GPUs; {_FIX}") from None
    if not 1 <= count <= GPUS_MAX:
        raise ValueError(f"gpus={count}: {_FIX}")
    return count


_FIX = f"give 1 to {GPUS_MAX}, those of all ranks together, or leave it out; a job on CPUs counts 1"


def device_count() -> int:
    """Devices that this process may use, without initialising them."""
    for name in VISIBLE:
        if (visible := os.environ.get(name)) is not None:
            return _visible_count(visible)
    for directory in DEVICES:
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return 0


def _visible_count(visible: str) -> int:
    """Devices of a list, which ends before the first that does not exist, such as -1."""
    count = 0
    for device in visible.split(","):
        if not device.strip() or device.strip().startswith("-"):
            break
        count += 1
    return count
