"""``forebay.embeddings`` against ``torch.nn.EmbeddingBag``, all tables in memory.

Twenty-six tables with Criteo's proportions and rows of 36 numbers, one key per table and sample.
Prints a JSON object for each row, which ``cargo xtask bench embed`` evaluates.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from forebay.embeddings import EmbeddingBag, EmbeddingCollection, Table

DIMENSION = 36
BATCHES = (1, 32, 2048)
CARDINALITIES = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194,
    27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
]  # fmt: skip


def draw(rows: int, samples: int, generator: torch.Generator) -> Tensor:
    """Zipf-distributed keys, with popular ones scattered over the table."""
    share = torch.rand(samples, generator=generator, dtype=torch.float64)
    rank = (share * torch.log(torch.tensor(float(rows)))).exp().long() - 1
    return rank * 0x9E3779B1 % rows


def rate(look_up: Callable[[Tensor], object], requests: list[Tensor]) -> float:
    """Lookups per second."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < 0.3:
        for keys in requests:
            look_up(keys)
        count += len(requests)
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    pairs = 5 if quick else 15
    wanted = 300_000 if quick else 1_500_000
    rows = [max(3, count * wanted // sum(CARDINALITIES)) for count in CARDINALITIES]
    generator = torch.Generator().manual_seed(1)
    weights = [torch.rand((count, DIMENSION), generator=generator) for count in rows]
    with tempfile.TemporaryDirectory(dir=".") as directory, torch.inference_mode():
        tables = []
        for number, weight in enumerate(weights):
            path = Path(directory) / f"C{number + 1}"
            path.write_bytes(bytes(weight.view(torch.uint8).reshape(-1).numpy()))
            tables.append(Table(path, dtype="float32", dimension=DIMENSION))
        memory = sum(weight.nbytes for weight in weights)
        collection = EmbeddingCollection(tables, memory=memory)
        bags = [
            EmbeddingBag(weight.shape[0], DIMENSION, mode="sum", table=table, memory=weight.nbytes)
            for weight, table in zip(weights, tables, strict=True)
        ]
        torch_bags = [
            nn.EmbeddingBag(weight.shape[0], DIMENSION, mode="sum", _weight=weight)
            for weight in weights
        ]
        compare(collection, bags, torch_bags, rows, pairs, generator)


def compare(
    collection: EmbeddingCollection,
    bags: list[EmbeddingBag],
    torch_bags: list[nn.EmbeddingBag],
    rows: list[int],
    pairs: int,
    generator: torch.Generator,
) -> None:
    for start in range(0, max(rows), 4096):  # every row is in memory before the clock starts
        warm = torch.stack([torch.arange(start, start + 4096) % count for count in rows])
        collection(warm)
        for bag, keys in zip(bags, warm, strict=True):
            bag(keys.unsqueeze(1))

    for batch in BATCHES:
        offsets = torch.arange(batch)
        requests = [
            torch.stack([draw(count, batch, generator) for count in rows]) for _ in range(16)
        ]

        def with_torch(keys: Tensor, offsets: Tensor = offsets) -> list[Tensor]:
            return [bag(key, offsets) for bag, key in zip(torch_bags, keys, strict=True)]

        def with_bags(keys: Tensor, offsets: Tensor = offsets) -> list[Tensor]:
            return [bag(key, offsets) for bag, key in zip(bags, keys, strict=True)]

        for found, expected in zip(collection(requests[0]), with_torch(requests[0]), strict=True):
            assert torch.equal(found, expected)
        sides: list[tuple[str, Callable[[Tensor], object]]] = [
            ("EmbeddingCollection", collection),
            ("26 x EmbeddingBag", with_bags),
        ]
        for name, side in sides:
            measured = []
            for pair in range(pairs):
                if pair % 2 == 0:
                    ours = rate(side, requests)
                    measured.append((ours, rate(with_torch, requests)))
                else:
                    theirs = rate(with_torch, requests)
                    measured.append((rate(side, requests), theirs))
            row = f"{name}, in memory, batch {batch}"
            print(
                json.dumps(
                    {
                        "row": row,
                        "unit": "lookups/s",
                        "against": "26 x torch",
                        "pairs": measured,
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
