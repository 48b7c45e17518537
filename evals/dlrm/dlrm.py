"""A small DLRM, trained on a click log and served from disk under a memory limit. See README.md."""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import resource
import struct
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from forebay.embeddings import EmbeddingCollection, Table

DIMENSION = 16
HELD_OUT = 0.2
CARDINALITIES = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194,
    27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
]  # fmt: skip


@dataclass
class Log:
    """Requests in order of time."""

    dense: Tensor
    #: The keys of all requests, for each table.
    keys: list[Tensor]
    #: The first key of each request and the end of the last, for each table.
    offsets: list[Tensor]
    clicks: Tensor
    rows: list[int]

    def __len__(self) -> int:
        return self.clicks.numel()

    def part(self, start: int, end: int) -> Log:
        keys, offsets = [], []
        for all_keys, bounds in zip(self.keys, self.offsets, strict=True):
            part = bounds[start : end + 1]
            keys.append(all_keys[part[0] : part[-1]])
            offsets.append(part - part[0])
        dense, clicks = self.dense[start:end], self.clicks[start:end]
        return Log(dense, keys, offsets, clicks, self.rows)


def generated(requests: int, rows: int, seed: int) -> Log:
    """A synthetic log: clicks are drawn from a hidden model of the keys."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [max(3, count * rows // sum(CARDINALITIES)) for count in CARDINALITIES]
    dense = torch.randn((requests, 13), generator=generator)
    score = dense @ torch.randn(13, generator=generator) * 0.2
    keys = []
    for size in sizes:
        share = torch.rand(requests, generator=generator, dtype=torch.float64)
        rank = (share * math.log(size)).exp().long() - 1
        keys.append(rank * 0x9E3779B1 % size)
        score += torch.randn(size, generator=generator)[keys[-1]] * 0.4
    clicks = torch.bernoulli(torch.sigmoid(score), generator=generator)
    offsets = [torch.arange(requests + 1)] * len(sizes)
    return Log(dense, keys, offsets, clicks, sizes)


def movielens(directory: Path) -> Log:
    """A log of ratings (user, film, genres). Four stars or more are a click."""
    films: dict[str, list[int]] = {}
    genres: dict[str, int] = {}
    with next(directory.glob("*movies.csv")).open(newline="") as file:
        for film in csv.DictReader(file):
            names = film["genres"].split("|")
            films[film["movieId"]] = [genres.setdefault(name, len(genres)) for name in names]
    path = next(directory.glob("*ratings.csv*"))
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="") as text:
        ratings = sorted(csv.DictReader(text), key=lambda rating: int(rating["timestamp"]))
    users: dict[str, int] = {}
    titles: dict[str, int] = {}
    columns: list[list[int]] = [[], [], []]
    bounds = [0]
    dense, clicks = [], []
    for rating in ratings:
        columns[0].append(users.setdefault(rating["userId"], len(users)))
        columns[1].append(titles.setdefault(rating["movieId"], len(titles)))
        columns[2].extend(films[rating["movieId"]])
        bounds.append(len(columns[2]))
        hour = int(rating["timestamp"]) // 3600 % 24 / 24
        dense.append([math.sin(2 * math.pi * hour), math.cos(2 * math.pi * hour)])
        clicks.append(float(rating["rating"]) >= 4)
    single = torch.arange(len(clicks) + 1)
    return Log(
        torch.tensor(dense),
        [torch.tensor(column) for column in columns],
        [single, single, torch.tensor(bounds)],
        torch.tensor(clicks, dtype=torch.float32),
        [len(users), len(titles), len(genres)],
    )


class Dlrm(nn.Module):
    """Bottom MLP, dot products of all pairs, top MLP. The caller looks up the embeddings."""

    def __init__(self, dense: int, tables: int) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(dense, 64), nn.ReLU(), nn.Linear(64, DIMENSION))
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(DIMENSION + pairs, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, dense: Tensor, embedded: list[Tensor]) -> Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *embedded], dim=1)
        dots = vectors @ vectors.transpose(1, 2)
        row, column = torch.triu_indices(vectors.shape[1], vectors.shape[1], 1)
        scores: Tensor = self.top(torch.cat([bottom, dots[:, row, column]], dim=1))
        return scores.squeeze(1)


def bags(rows: list[int]) -> list[nn.EmbeddingBag]:
    def bag(count: int) -> nn.EmbeddingBag:
        bag = nn.EmbeddingBag(count, DIMENSION, mode="sum", include_last_offset=True, sparse=True)
        nn.init.normal_(bag.weight, std=0.05)
        return bag

    return [bag(count) for count in rows]


def in_memory(tables: list[nn.EmbeddingBag], part: Log) -> list[Tensor]:
    keyed = zip(tables, part.keys, part.offsets, strict=True)
    return [table(keys, offsets) for table, keys, offsets in keyed]


def auc(scores: Tensor, clicks: Tensor) -> float:
    """Probability that a click scores higher than a request without one."""
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    clicked = clicks.sum().item()
    won = ranks[clicks == 1].sum().item() - clicked * (clicked + 1) / 2
    return won / (clicked * (len(scores) - clicked))


def save_tables(path: Path, tables: list[Tensor]) -> None:
    """Write the tables as a `.safetensors` file."""
    header, at = {}, 0
    for number, table in enumerate(tables):
        end = at + table.nbytes
        shape = list(table.shape)
        header[f"table.{number}"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for table in tables:
            file.write(table.detach().contiguous().view(torch.uint8).reshape(-1).numpy().tobytes())


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    log = movielens(args.movielens) if args.movielens else generated(args.requests, args.rows, 1)
    kind = "MovieLens" if args.movielens else "generated (synthetic)"
    count = int(len(log) * (1 - HELD_OUT))
    model, tables = Dlrm(log.dense.shape[1], len(log.rows)), bags(log.rows)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    adagrad = torch.optim.Adagrad([table.weight for table in tables], lr=args.table_rate)
    for epoch in range(args.epochs):
        began, losses = time.perf_counter(), []
        for start in range(0, count, args.batch):
            part = log.part(start, min(start + args.batch, count))
            scores = model(part.dense, in_memory(tables, part))
            loss = nn.functional.binary_cross_entropy_with_logits(scores, part.clicks)
            for optimizer in (adam, adagrad):
                optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in (adam, adagrad):
                optimizer.step()
            losses.append(loss.item())
        took = time.perf_counter() - began
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.4f}, {took:.1f} s")
    args.out.mkdir(parents=True, exist_ok=True)
    save_tables(args.out / "tables.safetensors", [table.weight for table in tables])
    held_out = log.part(count, len(log))
    torch.save({"model": model.state_dict(), "log": held_out.__dict__}, args.out / "rest.pt")
    rows = sum(log.rows)
    print(f"{kind}: trained on {count} requests, {len(held_out)} held out, {rows} rows")


def memory_of(text: str, tables: int) -> int:
    if text.endswith("%"):
        return int(tables * float(text[:-1]) / 100)
    return int(text)


@torch.inference_mode()
def serve(args: argparse.Namespace) -> None:
    saved = torch.load(args.model / "rest.pt", weights_only=True)
    log = Log(**saved["log"])
    model = Dlrm(log.dense.shape[1], len(log.rows))
    model.load_state_dict(saved["model"])
    path = args.model / "tables.safetensors"
    memory = memory_of(args.memory, path.stat().st_size)
    on_disk = EmbeddingCollection(
        [Table(path, f"table.{number}") for number in range(len(log.rows))],
        memory=memory,
        include_last_offset=True,
        policy=args.policy,
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    scores, micros = [], []
    for start in range(0, len(log), args.batch):
        part = log.part(start, min(start + args.batch, len(log)))
        began = time.perf_counter()
        embedded = on_disk(part.keys, part.offsets)
        micros.append((time.perf_counter() - began) * 1e6)
        scores.append(model(part.dense, embedded))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    ours = torch.cat(scores)
    stats = on_disk.stats()

    # The reference, with all tables in memory. Loaded last, so that it does not add to `grown`.
    tables = bags(log.rows)
    with path.open("rb") as file:
        header = struct.unpack("<Q", file.read(8))[0]
        file.seek(8 + header)
        for table in tables:
            raw = bytearray(file.read(table.weight.nbytes))
            table.weight.copy_(torch.frombuffer(raw, dtype=torch.float32).view_as(table.weight))
    scores = []
    for start in range(0, len(log), args.batch):
        part = log.part(start, min(start + args.batch, len(log)))
        scores.append(model(part.dense, in_memory(tables, part)))
    equal = torch.equal(ours, torch.cat(scores))
    micros.sort()
    print(f"tables {path.stat().st_size / 1e6:.1f} MB, memory {memory / 1e6:.2f} MB")
    resident = stats["resident_bytes"]
    print(f"rows in memory: {resident / 1e6:.2f} MB; the process grew by {grown / 1e3:.1f} MB")
    perfect, hits = stats["perfect"] / stats["samples"], stats["hits"] / stats["keys"]
    print(f"perfect hits {perfect:.1%}, individual hits {hits:.1%}")
    mean, tail = sum(micros) / len(micros), micros[(len(micros) - 1) * 99 // 100]
    print(f"embedding lookup of a batch of {args.batch}: mean {mean:.0f} us, p99 {tail:.0f} us")
    print(f"AUC {auc(ours, log.clicks):.4f}; bitwise equal to the scores from memory: {equal}")
    if not equal or resident > memory:
        raise SystemExit("WRONG: scores differ, or rows use more memory than allowed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    trainer = commands.add_parser("train")
    trainer.set_defaults(run=train)
    trainer.add_argument("--out", type=Path, required=True)
    trainer.add_argument("--movielens", type=Path, metavar="DIRECTORY")
    trainer.add_argument("--requests", type=int, default=100_000)
    trainer.add_argument("--rows", type=int, default=200_000)
    trainer.add_argument("--epochs", type=int, default=2)
    trainer.add_argument("--batch", type=int, default=256)
    trainer.add_argument("--table-rate", type=float, default=0.05)
    trainer.add_argument("--seed", type=int, default=0)
    server = commands.add_parser("serve")
    server.set_defaults(run=serve)
    server.add_argument("--model", type=Path, required=True)
    server.add_argument("--memory", default="5%", help="bytes, or a percentage of the tables")
    server.add_argument("--batch", type=int, default=1)
    server.add_argument("--policy", default="group")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
