"""Compares forebay's implementations of published policies with libcachesim's.

Run by `cargo xtask libcachesim [TRACE ...]`, in its own environment. Without TRACE it generates a
skewed trace. A trace is a file of big-endian keys, plain or xz: 32-bit keys, or 64-bit ones if
`scarab` is in its name.

The check covers embedding rows (`forebay embed sim`) and the flash tier (`forebay sim trace`), on
single-key traces. Deterministic policies (FIFO, LRU, CLOCK, LFU, SIEVE, ARC, S3-FIFO) must agree
within 0.1 points. For the others (random choices, parameters that their papers do not fix) the
difference is printed.
"""

import json
import lzma
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
PRINTED = {
    "lirs": lcs.LIRS,
    "clock-pro": lcs.ClockPro,
    "lecar": lcs.LeCaR,
    "cacheus": lcs.Cacheus,
    "w-tinylfu": lcs.WTinyLFU,
}
# The deterministic policies of the flash tier.
TIER = {"fifo": lcs.FIFO, "lru": lcs.LRU}
TOLERANCE_POINTS = 0.1


def generated() -> str:
    """Write a skewed trace whose popular keys change half-way to a temporary file."""
    rng = random.Random(1)
    keys = [
        int(rng.paretovariate(0.7)) % 20_000 + (5_000 if i > 60_000 else 0) for i in range(120_000)
    ]
    with tempfile.NamedTemporaryFile(suffix=".trace", delete=False) as file:
        file.write(b"".join(struct.pack(">I", key) for key in keys))
    return file.name


def read(trace: str) -> list[int]:
    """The keys of a trace."""
    with lzma.open(trace) if trace.endswith(".xz") else open(trace, "rb") as file:
        data = file.read()
    return [key for (key,) in struct.iter_unpack(">q" if "scarab" in trace else ">I", data)]


def theirs(policy: Any, keys: list[int], capacity: int, warm_up: int) -> float:
    """Hit rate of a libcachesim policy in percent, without the first ``warm_up`` requests."""
    cache = policy(cache_size=capacity)
    hits = 0
    request = lcs.Request()
    request.obj_size = 1
    for index, key in enumerate(keys):
        request.obj_id = key + 1
        hit = cache.get(request)
        hits += hit and index >= warm_up
    return 100 * hits / (len(keys) - warm_up)


def run(binary: str, *arguments: str) -> Any:
    """Run a forebay command and parse its report."""
    command = [binary, *arguments, "--format", "json", "--cache", "1%,10%"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def differs(what: str, ours: float, other: float, exact: bool) -> bool:
    """Print both hit rates. Returns whether they should agree and do not."""
    wrong = exact and abs(ours - other) > TOLERANCE_POINTS
    mark = "  DIFFERS" if wrong else ""
    rates = f"forebay {ours:6.2f} libcachesim {other:6.2f}"
    print(f"{what} {rates} {ours - other:+6.2f}{mark}", flush=True)
    return wrong


def embeddings(binary: str, trace: str, keys: list[int]) -> int:
    """Compare the policies of embedding rows. Returns the number of differences."""
    names = ",".join([*EXACT, *PRINTED])
    report = run(binary, "embed", "sim", trace, "--no-bounds", "--policy", names)
    wrong = 0
    for row in report["rows"]:
        name, tally, rows = row["policy"], row["single"], row["capacity_rows"]
        other = theirs({**EXACT, **PRINTED}[name], keys, rows, len(keys) // 5)
        what = f"embed {report['trace']} {rows:>7} rows {name:<10}"
        wrong += differs(what, 100 * tally["hits"] / tally["keys"], other, name in EXACT)
    return wrong


def tier(binary: str, trace: str, keys: list[int]) -> int:
    """Compare the policies of the flash tier. Returns the number of differences."""
    wrong = 0
    for row in run(binary, "sim", "trace", trace, "--policy", ",".join(TIER)):
        other = theirs(TIER[row["policy"]], keys, row["capacity"], 0)
        what = f"tier {trace.split('/')[-1]} {row['capacity']:>7} objects {row['policy']:<10}"
        wrong += differs(what, 100 * row["hits"] / row["requests"], other, True)
    return wrong


def main() -> int:
    binary, *traces = sys.argv[1:]
    wrong = 0
    for trace in traces or [generated()]:
        keys = read(trace)
        wrong += tier(binary, trace, keys) + embeddings(binary, trace, keys)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
