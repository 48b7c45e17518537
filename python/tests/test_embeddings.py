"""Embedding tables give the results of ``torch.nn.EmbeddingBag``, bit for bit."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import forebay
from forebay.embeddings import EmbeddingBag, EmbeddingCollection, Table

ROWS, DIMENSION = 500, 36
# Holds a part of a table of float32 beside its bookkeeping.
MEMORY = 50_000
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def write(path: Path, weight: Tensor) -> Table:
    """Write bare rows."""
    path.write_bytes(bytes(weight.contiguous().view(torch.uint8).reshape(-1).numpy()))
    return Table(path, dtype=weight.dtype, dimension=weight.shape[1])


def weights(seed: int, dtype: torch.dtype = torch.float32, rows: int = ROWS) -> Tensor:
    """Random rows, some of them with infinities, NaN or -0."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn((rows, DIMENSION), generator=generator)
    weight[3, 1] = float("inf")
    weight[4, 2] = float("-inf")
    weight[5, 3] = float("nan")
    weight[6] = -0.0
    return weight.to(dtype)


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().view(torch.uint8).reshape(-1).numpy())


def bags(generator: torch.Generator, samples: int, *, last: bool) -> tuple[Tensor, Tensor]:
    """Bags of up to six keys, some of them empty."""
    lengths = torch.randint(0, 7, (samples,), generator=generator)
    keys = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
    keys[::3] %= 10  # more of the unusual rows
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return keys, bounds if last else bounds[:-1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding_idx", [None, 7, -490])
@pytest.mark.parametrize("last", [False, True])
def test_results_equal_torch_bit_for_bit(
    tmp_path: Path, dtype: torch.dtype, mode: str, padding_idx: int | None, last: bool
) -> None:
    weight = weights(1, dtype)
    table = write(tmp_path / "rows", weight)
    options: dict[str, Any] = {
        "mode": mode,
        "include_last_offset": last,
        "padding_idx": padding_idx,
    }
    theirs = nn.EmbeddingBag(ROWS, DIMENSION, _weight=weight, dtype=dtype, **options)
    ours = EmbeddingBag(ROWS, DIMENSION, dtype=dtype, table=table, memory=MEMORY, **options)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for samples in (1, 2, 33, 200):
            keys, offsets = bags(generator, samples, last=last)
            assert bits(ours(keys, offsets)) == bits(theirs(keys, offsets))
            short = (keys.int(), offsets.int())
            assert bits(ours(*short)) == bits(theirs(*short))
            if not last:
                square = torch.randint(0, ROWS, (samples, 5), generator=generator)
                assert bits(ours(square)) == bits(theirs(square))
    stats = ours.stats()
    assert 0 < stats["hits"] < stats["keys"]
    kinds = ("resident", "directory", "ghost", "tuning")
    used = sum(stats[f"{kind}_bytes"] for kind in kinds)
    assert used <= stats["memory_bytes"] == MEMORY, "below 32 MiB, buffers come on top"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding_idx", [None, 7])
def test_weighted_results_equal_torch_bit_for_bit(
    tmp_path: Path, dtype: torch.dtype, padding_idx: int | None
) -> None:
    weight = weights(3, dtype)
    table = write(tmp_path / "rows", weight)
    theirs = nn.EmbeddingBag(
        ROWS, DIMENSION, mode="sum", padding_idx=padding_idx, _weight=weight, dtype=dtype
    )
    ours = EmbeddingBag(
        ROWS, DIMENSION, mode="sum", padding_idx=padding_idx, table=table, memory=MEMORY
    )
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for samples in (1, 50):
            keys, offsets = bags(generator, samples, last=False)
            scale = torch.randn(keys.shape, generator=generator).to(dtype)
            assert bits(ours(keys, offsets, scale)) == bits(theirs(keys, offsets, scale))
            square = torch.randint(0, ROWS, (samples, 5), generator=generator)
            scale = torch.randn(square.shape, generator=generator).to(dtype)
            mine = ours(square, per_sample_weights=scale)
            assert bits(mine) == bits(theirs(square, per_sample_weights=scale))


def test_a_collection_equals_a_list_of_bags(tmp_path: Path) -> None:
    tables = [weights(seed, rows=100 + seed) for seed in range(5)]
    written = [write(tmp_path / str(at), weight) for at, weight in enumerate(tables)]
    for memory in (0, MEMORY, 10_000_000):
        ours = EmbeddingCollection(written, memory=memory)
        assert ours.shapes == [(100 + seed, DIMENSION) for seed in range(5)]
        generator = torch.Generator().manual_seed(memory)
        for samples in (1, 32, 100):
            keys = torch.randint(0, 100, (5, samples), generator=generator)
            for table, found in enumerate(ours(keys)):
                assert bits(found) == bits(0.0 + tables[table][keys[table]])
            assert ours(keys)[0].shape == (samples, DIMENSION)
            assert all(found.is_contiguous() for found in ours(keys))
            ragged = [bags(generator, samples, last=False) for _ in tables]
            ragged = [(keys % 100, offsets) for keys, offsets in ragged]
            found = ours([keys for keys, _ in ragged], [offsets for _, offsets in ragged])
            for weight, (keys, offsets), mine in zip(tables, ragged, found, strict=True):
                theirs = nn.functional.embedding_bag(keys, weight, offsets, mode="sum")
                assert bits(mine) == bits(theirs)


def test_tables_of_different_dimensions(tmp_path: Path) -> None:
    tables = [weights(seed)[:, : 3 + 5 * seed].contiguous() for seed in range(3)]
    written = []
    for at, weight in enumerate(tables):
        np.save(tmp_path / f"{at}.npy", weight.numpy())
        written.append(tmp_path / f"{at}.npy")
    ours = EmbeddingCollection(written, memory=10_000_000)
    for samples in (0, 1, 7, 20_000):  # the last one takes several threads
        keys = torch.randint(0, ROWS, (3, samples), generator=torch.Generator().manual_seed(3))
        lists = ours([*keys.unsqueeze(2)])
        for weight, key, one, other in zip(tables, keys, ours(keys), lists, strict=True):
            assert one.is_contiguous()
            assert one.shape == (samples, weight.shape[1])
            assert bits(one) == bits(other) == bits(0.0 + weight[key])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_results_of_one_key_per_table_equal_torch_bit_for_bit(tmp_path: Path, mode: str) -> None:
    tables = [weights(seed) for seed in range(3)]
    written = [write(tmp_path / str(at), weight) for at, weight in enumerate(tables)]
    theirs = [
        nn.EmbeddingBag(ROWS, DIMENSION, mode=mode, padding_idx=padding, _weight=weight)
        for weight, padding in zip(tables, (None, 7, -1), strict=True)
    ]
    generator = torch.Generator().manual_seed(8)
    for memory in (MEMORY, 10_000_000):
        ours = EmbeddingCollection(written, memory=memory, mode=mode, padding_idx=[None, 7, -1])
        for samples in (0, 1, 7, 20_000):  # the last one takes several threads
            keys = torch.randint(0, ROWS, (3, samples), generator=generator)
            keys[:, ::5] = torch.tensor([6, 7, ROWS - 1]).unsqueeze(1)
            short = ours(keys.int())
            for table, found in enumerate(ours(keys)):
                expected = theirs[table](keys[table], torch.arange(samples))
                assert bits(found) == bits(expected)
                assert bits(short[table]) == bits(expected)
    with pytest.raises(forebay.TableError, match=r"key 500 at index 1 of table 2"):
        ours(torch.tensor([[1, 2], [3, 4], [5, ROWS]]))


def test_all_formats_are_read(tmp_path: Path) -> None:
    weight = weights(5)
    np.save(tmp_path / "table.npy", weight.numpy())
    raw = bits(weight)
    header = json.dumps(
        {
            "emb.0": {
                "dtype": "F32",
                "shape": [ROWS, DIMENSION],
                "data_offsets": [0, len(raw)],
            },
            "emb.1": {
                "dtype": "F32",
                "shape": [ROWS, DIMENSION],
                "data_offsets": [len(raw), 2 * len(raw)],
            },
        }
    ).encode()
    both = raw + bits(weight.flip(0))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + both)
    keys = torch.tensor([0, 8, ROWS - 1])
    cases: list[tuple[Table | str | Path, Tensor]] = [
        (tmp_path / "table.npy", weight[keys]),
        (str(tmp_path / "table.npy"), weight[keys]),
        (Table(tmp_path / "model.safetensors", "emb.0"), weight[keys]),
        (Table(tmp_path / "model.safetensors", "emb.1"), weight.flip(0)[keys]),
    ]
    for table, expected in cases:
        ours = EmbeddingCollection([table], memory="1MiB")
        assert bits(ours([keys])[0]) == bits(0.0 + expected)
    with pytest.raises(forebay.TableError, match=r"name one with .*: `emb\.0`, `emb\.1`"):
        EmbeddingCollection([tmp_path / "model.safetensors"], memory=0)


@pytest.mark.parametrize("bits_per_number", [4, 8])
def test_tables_that_torch_quantised_are_served(tmp_path: Path, bits_per_number: int) -> None:
    generator = torch.Generator().manual_seed(8)
    exact = torch.randn((ROWS, DIMENSION), generator=generator)
    ops, name = torch.ops.quantized, "4bit" if bits_per_number == 4 else "byte"
    packed = getattr(ops, f"embedding_bag_{name}_prepack")(exact)
    weight = getattr(ops, f"embedding_bag_{name}_unpack")(packed)
    (tmp_path / "table").write_bytes(bytes(packed.reshape(-1).numpy()))
    table = Table(tmp_path / "table", dtype=f"int{bits_per_number}", dimension=DIMENSION)
    ours = EmbeddingBag(ROWS, DIMENSION, mode="sum", table=table, memory=MEMORY)
    keys, offsets = bags(generator, 40, last=False)
    expected = torch.nn.functional.embedding_bag(keys, weight, offsets, mode="sum")
    torch.testing.assert_close(ours(keys, offsets), expected)
    scales = torch.rand(keys.shape, generator=generator)
    expected = torch.nn.functional.embedding_bag(
        keys, weight, offsets, mode="sum", per_sample_weights=scales
    )
    torch.testing.assert_close(ours(keys, offsets, scales), expected)
    with pytest.raises(forebay.TableError, match="replace the table"):
        ours.replace_rows(0, exact[:1])


def test_signature_is_that_of_torch() -> None:
    theirs = list(inspect.signature(nn.EmbeddingBag).parameters.values())
    ours = list(inspect.signature(EmbeddingBag).parameters.values())
    for mine, their in zip(ours, theirs, strict=False):
        assert (mine.name, mine.kind, mine.default) == (their.name, their.kind, their.default)
    assert all(more.kind is inspect.Parameter.KEYWORD_ONLY for more in ours[len(theirs) :])
    forward = inspect.signature(EmbeddingBag.forward)
    assert list(forward.parameters) == list(inspect.signature(nn.EmbeddingBag.forward).parameters)


def test_invalid_arguments_are_rejected(tmp_path: Path) -> None:
    table = write(tmp_path / "rows", weights(6))

    def bag(**options: object) -> EmbeddingBag:
        arguments = {"table": table, "memory": 0} | options
        return EmbeddingBag(ROWS, DIMENSION, **arguments)  # type: ignore[arg-type]

    cases: list[tuple[dict[str, object], str]] = [
        ({"max_norm": 1.0}, "max_norm"),
        ({"_weight": weights(6)}, "_weight"),
        ({"device": "cuda"}, "CPU"),
        ({"dtype": torch.float64}, "float32"),
        ({"mode": "median"}, "sum, mean or max"),
        ({"padding_idx": ROWS}, "padding_idx"),
        ({"memory": "5 spoons"}, "spoons"),
        ({"policy": "lru2"}, "no policy `lru2`"),
        ({"io": "tape"}, "tape"),
        ({"table": Table(tmp_path / "rows", dtype="float32")}, "both"),
        ({"table": Table(tmp_path / "rows", dtype="int2", dimension=2)}, "int2"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            bag(**options)
    with pytest.raises(ValueError, match="500 rows of 36 numbers, not 9 of 36"):
        EmbeddingBag(9, DIMENSION, table=table, memory=0)
    with pytest.raises(forebay.TableError, match="there is no file"):
        bag(table=tmp_path / "nowhere")
    ours = bag()
    offsets = torch.tensor([0])
    for keys in ([ROWS], [-1], [2**62]):
        with pytest.raises(forebay.TableError, match=rf"key {keys[0]} at index 0 of table 0"):
            ours(torch.tensor(keys), offsets)
    with pytest.raises(forebay.TableError, match="first bag must begin at 0"):
        ours(torch.tensor([1]), torch.tensor([1]))
    for wrong in (
        (torch.tensor([1]),),
        (torch.tensor([[1]]), offsets),
        (torch.tensor([[[1]]]),),
        (torch.tensor([1.5]), offsets),
        (torch.tensor([1]), offsets, torch.tensor([1.0, 2.0])),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            ours(*wrong)
    one = torch.tensor([1])
    with pytest.raises(ValueError, match=r"offsets are of torch\.float32"):
        ours(one, torch.tensor([0.0]))
    array: Any = np.zeros((1, DIMENSION))
    unusual: list[tuple[Callable[[], object], str]] = [
        (lambda: ours(np.array([1]), offsets), "keys are of ndarray"),
        (lambda: ours(one, [0]), "offsets are of list"),
        (lambda: ours.replace_rows(0, array), "rows are of ndarray"),
        (lambda: bag(memory=1e6), "memory is 1000000"),
    ]
    for call, message in unusual:
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(IndexError, match="counted from 0"):
        ours.replace_rows(-1, torch.zeros(1, DIMENSION))
    with pytest.raises(IndexError, match="no table 2; there are 1"):
        EmbeddingCollection([table], memory=0).replace_rows(2, 0, torch.zeros(1, DIMENSION))
    with pytest.raises(NotImplementedError):
        ours(torch.tensor([1]), offsets, torch.tensor([1.0]))
    with pytest.raises(ValueError, match="keys of 2 tables; there are 1"):
        EmbeddingCollection([table], memory=0)([offsets, offsets])


@pytest.mark.parametrize("dtype", DTYPES)
def test_lookups_without_samples_or_keys(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = weights(7, dtype)
    table = write(tmp_path / "rows", weight)
    theirs = nn.EmbeddingBag(ROWS, DIMENSION, mode="sum", _weight=weight, dtype=dtype)
    ours = EmbeddingBag(ROWS, DIMENSION, table=table, memory=0, mode="sum")
    none, scale = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=dtype)
    three = torch.zeros(3, dtype=torch.int64)
    no_samples = torch.zeros((0, 5), dtype=torch.int64)
    calls = [(none, none), (none, three), (none, none, scale), (none, three, scale), (no_samples,)]
    with torch.no_grad():
        for call in calls:
            assert ours(*call).shape == theirs(*call).shape
            assert bits(ours(*call)) == bits(theirs(*call))
    assert ours(torch.zeros((4, 0), dtype=torch.int64)).shape == (4, DIMENSION)
    some = EmbeddingCollection([table, table], memory=0)
    empty, full = some([none, torch.tensor([1, 2, 3])], [three, torch.arange(3)])
    assert bits(empty) == bytes(empty.nbytes)
    assert bits(full) == bits(weight[1:4])


def test_a_copy_opens_the_tables_again(tmp_path: Path) -> None:
    weight = weights(8)
    table, other = write(tmp_path / "rows", weight), write(tmp_path / "other", -weight)
    ours = EmbeddingCollection([table, table], memory=MEMORY, padding_idx=[7, None])
    ours.replace_table(1, other)
    keys = torch.tensor([[7, 1, 2], [7, 1, 2]])
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert list(map(bits, copied(keys))) == list(map(bits, ours(keys)))
        assert copied.stats()["lookups"] == 1
    shallow, before = copy.copy(ours), pickle.dumps(ours)
    shallow.replace_table(0, other)
    assert list(map(bits, copy.deepcopy(ours)(keys))) == list(map(bits, ours(keys)))
    write(tmp_path / "other", weight[:100])
    with pytest.raises(forebay.TableError, match="other tables than when this was copied"):
        pickle.loads(before)


def test_default_dtype_and_device_do_not_affect_results(tmp_path: Path) -> None:
    weight = weights(9)
    table = write(tmp_path / "rows", weight)
    ours = EmbeddingCollection([table, table], memory=0)
    bag = EmbeddingBag(ROWS, DIMENSION, table=table, memory=0)
    keys, offsets = torch.tensor([[1, 2], [3, 4]]), torch.tensor([0, 1])
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        results = [*ours(keys), *ours(list(keys)), bag(keys[0], offsets)]
        scale = torch.ones(2, dtype=torch.float32, device="cpu")
        results += ours(list(keys), per_sample_weights=[scale, scale])
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert all(one.dtype is torch.float32 and one.is_cpu for one in results)
    assert bits(results[0]) == bits(weight[1:3])


def test_rows_and_tables_are_replaced_during_lookups(tmp_path: Path) -> None:
    full = torch.zeros((ROWS, DIMENSION))
    path = tmp_path / "rows"
    table = write(path, full)
    ours = EmbeddingBag(ROWS, DIMENSION, table=table, memory=MEMORY, mode="sum")
    stop = threading.Event()
    torn: list[Tensor] = []

    def look_up() -> None:
        generator = torch.Generator().manual_seed(1)
        while not stop.is_set():
            found = ours(torch.randint(0, ROWS, (20, 1), generator=generator))
            torn.extend(row for row in found if (row != row[0]).any())

    threads = [threading.Thread(target=look_up) for _ in range(2)]
    for thread in threads:
        thread.start()
    for version in range(1, 40):
        ours.replace_rows(version, torch.full((3, DIMENSION), float(version)))
    other = write(tmp_path / "other", full + 77)
    ours.replace_table(other)
    found = ours(torch.arange(ROWS), torch.arange(ROWS))
    stop.set()
    for thread in threads:
        thread.join()
    assert not torn
    assert bits(found) == bits(full + 77)
    assert np.fromfile(path, dtype=np.float32).reshape(ROWS, DIMENSION)[39, 0] == 39
    with pytest.raises(ValueError, match="36 numbers"):
        ours.replace_rows(0, torch.zeros((1, 4)))


def test_rows_of_known_and_implied_keys_are_prefetched(tmp_path: Path) -> None:
    rows = 3000
    full = [torch.arange(rows).float().repeat_interleave(4).view(rows, 4) + n for n in range(3)]
    tables = []
    for number, weight in enumerate(full):
        path = tmp_path / f"{number}.npy"
        np.save(path, weight.numpy())
        tables.append(path)
    ours = EmbeddingCollection(tables, memory=100_000)
    generator = torch.Generator().manual_seed(1)
    missed = [0, 0]
    for index in range(16_000):
        user, item = ((torch.rand(2, generator=generator) ** 3) * rows).long().tolist()
        ours.prefetch({0: torch.tensor([user]), 2: torch.tensor([item], dtype=torch.int32)})
        before = ours.stats()["rows_read"]
        found = ours(torch.tensor([[user], [user * 7 % rows], [item]]))
        missed[index // 8000] += ours.stats()["rows_read"] - before
        expected = [user, user * 7 % rows + 1, item + 2]
        assert [row[0, 0].item() for row in found] == expected
    stats = ours.stats()
    assert [(a, b) for a, b, _ in stats["bundles"]] == [(0, 1)]
    assert missed[1] < missed[0]
    assert stats["rows_prefetched"] > 1000
    with pytest.raises(forebay.TableError, match="key 3000 at index 0 of table 1"):
        ours.prefetch({1: torch.tensor([rows])})
    with pytest.raises(forebay.TableError, match="there is no table 7"):
        ours.prefetch({7: torch.tensor([0])})
    with pytest.raises(ValueError, match="int64 or int32"):
        ours.prefetch({0: torch.tensor([0.5])})


def test_import_forebay_imports_no_torch() -> None:
    import subprocess
    import sys

    script = "import forebay, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
