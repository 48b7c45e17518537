"""Compares our classics with libcachesim's on single-key traces.

An outside check, in an environment of its own:

    python3 -m venv /tmp/interop && /tmp/interop/bin/pip install libcachesim
    cargo build --release
    /tmp/interop/bin/python tests/interop/check_libcachesim.py target/release/forebay [TRACE ...]

Without TRACE it makes a skewed trace of its own. A trace is a file of big-endian 32-bit keys.
Policies that leave nothing open (FIFO, LRU, CLOCK, LFU, SIEVE, ARC, S3-FIFO) must agree within 0.1
points; for the others (random choices, parameters that their papers do not fix) the difference is
shown.
"""

import json
import random
import struct
import subprocess
import sys
import tempfile
from typing import Any

import libcachesim as lcs

EXACT = {
    "fifo": lcs.FIFO,
    "lru": lcs.LRU,
    "clock": lcs.Clock,
    "lfu": lcs.LFU,
    "sieve": lcs.Sieve,
    "arc": lcs.ARC,
    "s3-fifo": lcs.S3FIFO,
}
SHOWN = {
    "lirs": lcs.LIRS,
    "clock-pro": lcs.ClockPro,
    "lecar": lcs.LeCaR,
    "cacheus": lcs.Cacheus,
    "w-tinylfu": lcs.WTinyLFU,
}
TOLERANCE_POINTS = 0.1


def generated() -> str:
    """A trace with favourites that change half-way, written to a temporary file."""
    rng = random.Random(1)
    keys = [
        int(rng.paretovariate(0.7)) % 20_000 + (5_000 if i > 60_000 else 0) for i in range(120_000)
    ]
    with tempfile.NamedTemporaryFile(suffix=".trace", delete=False) as file:
        file.write(b"".join(struct.pack(">I", key) for key in keys))
    return file.name


def theirs(policy: Any, keys: list[int], capacity: int) -> float:
    """Hit rate of a libcachesim policy in percent, the first fifth not counted."""
    cache = policy(cache_size=capacity)
    warm_up, hits = len(keys) // 5, 0
    request = lcs.Request()
    request.obj_size = 1
    for index, key in enumerate(keys):
        request.obj_id = key + 1
        hit = cache.get(request)
        hits += hit and index >= warm_up
    return 100 * hits / (len(keys) - warm_up)


def main() -> int:
    binary, *traces = sys.argv[1:]
    wrong = 0
    for trace in traces or [generated()]:
        with open(trace, "rb") as file:
            data = file.read()
        keys = [key for (key,) in struct.iter_unpack(">I", data)]
        command = [
            binary,
            "embed",
            "sim",
            trace,
            "--format",
            "json",
            "--no-bounds",
            "--cache",
            "1%,10%",
            "--policy",
            ",".join([*EXACT, *SHOWN]),
        ]
        report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for row in report["rows"]:
            name, tally = row["policy"], row["single"]
            ours = 100 * tally["hits"] / tally["keys"]
            other = theirs({**EXACT, **SHOWN}[name], keys, row["capacity_rows"])
            differs = name in EXACT and abs(ours - other) > TOLERANCE_POINTS
            wrong += differs
            print(
                f"{report['trace']} {row['capacity_rows']:>7} rows {name:<10} ours {ours:6.2f} "
                f"theirs {other:6.2f} {ours - other:+6.2f}{'  DIFFERS' if differs else ''}",
                flush=True,
            )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
