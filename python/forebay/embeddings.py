"""Embedding tables larger than memory, as PyTorch modules for inference.

``EmbeddingBag`` replaces ``torch.nn.EmbeddingBag``. ``EmbeddingCollection`` replaces a list of them
and looks all tables up in one call. Rows stay in their files; hot rows are kept in memory, up to a
limit. Results equal those of ``torch.nn.EmbeddingBag`` bit for bit. Rows have no gradients.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forebay import _native

__all__ = ["EmbeddingBag", "EmbeddingCollection", "Table"]

_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class Table:
    """Location of a table.

    Parameters
    ----------
    path
        A ``.safetensors``, a ``.npy`` or a file of bare rows.
    tensor
        Name of the tensor, in a ``.safetensors`` with several tables.
    dtype, dimension, offset
        For a file of bare rows: the type of its numbers (``"float32"``), the numbers per row, and
        the offset of the first row in bytes. Quantised rows (``"int8"``, ``"int4"``,
        ``"int8-tbe"``, ``"int4-tbe"``) are served as float32.
    """

    path: str | os.PathLike[str]
    tensor: str | None = None
    dtype: str | torch.dtype | None = None
    dimension: int | None = None
    offset: int = 0

    def _source(self) -> _native.Source:
        if (self.dtype is None) != (self.dimension is None):
            raise ValueError("for bare rows, give both dtype and dimension")
        raw = None
        if self.dtype is not None and self.dimension is not None:
            raw = (str(self.dtype).removeprefix("torch."), self.dimension, self.offset)
        return (os.fspath(self.path), self.tensor, raw)


def _source(table: Table | str | os.PathLike[str]) -> _native.Source:
    return (table if isinstance(table, Table) else Table(table))._source()


def _size(memory: int | str) -> str:
    if isinstance(memory, int):
        return f"{memory}B"
    if isinstance(memory, str):
        return memory
    raise TypeError(f"memory is {memory!r}; give bytes as an int, or a string such as '2GiB'")


class _Bags(NamedTuple):
    """Bags of one table, with the checks of ``torch.nn.functional.embedding_bag``."""

    keys: Tensor
    offsets: Tensor | None
    bags: int
    length: int
    last: bool
    weights: Tensor | None

    @staticmethod
    def check(
        input: Tensor, offsets: Tensor | None, last: bool, weights: Tensor | None, single: bool
    ) -> _Bags:
        """Check the arguments. With ``single`` and without offsets, each key is a bag."""
        keys = _indices(input, "keys")
        if weights is not None and weights.shape != input.shape:
            raise ValueError(
                f"embedding_bag: If per_sample_weights ({weights.shape}) is not None, "
                f"then it must have the same shape as the input ({input.shape})"
            )
        if weights is not None:
            weights = weights.reshape(-1)
        if input.dim() == 2:
            if offsets is not None:
                raise ValueError(
                    "if input is 2D, then offsets has to be None, as input is treated is a "
                    "mini-batch of fixed length sequences. However, found offsets of type "
                    f"{type(offsets)}"
                )
            return _Bags(keys, None, input.shape[0], input.shape[1], False, weights)
        if input.dim() != 1:
            raise ValueError(
                f"input has to be 1D or 2D Tensor, but got Tensor of dimension {input.dim()}"
            )
        if offsets is None and single:
            return _Bags(keys, None, keys.numel(), 1, False, weights)
        if offsets is None:
            raise ValueError("offsets has to be a 1D Tensor but got None")
        _must_be_tensor(offsets, "offsets")
        if offsets.dim() != 1:
            raise ValueError("offsets has to be a 1D Tensor")
        offsets = _indices(offsets, "offsets")
        count = offsets.numel() - 1 if last else offsets.numel()
        return _Bags(keys, offsets, max(count, 0), 0, last, weights)

    def argument(self, padding: int | None) -> _native.Bags:
        offsets = None if self.offsets is None else self.offsets.numpy()
        return (self.keys.numpy(), offsets, (self.bags, self.length), self.last, padding)

    def starts(self) -> Tensor:
        if self.offsets is not None:
            return self.offsets
        return torch.arange(self.bags, device="cpu") * self.length


def _are_indices(tensor: object) -> TypeGuard[Tensor]:
    """Whether the native code can use the tensor without conversion."""
    return (
        isinstance(tensor, Tensor)
        and tensor.dtype is torch.int64
        and tensor.dim() == 1
        and tensor.is_cpu
        and tensor.is_contiguous()
    )


def _floats(*shape: int) -> Tensor:
    """Return an empty float32 tensor on the CPU, whatever the program's defaults are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def _must_be_tensor(value: object, what: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} are of {type(value).__name__}; give a tensor (torch.as_tensor)")


def _indices(tensor: Tensor, what: str) -> Tensor:
    if _are_indices(tensor):
        return tensor
    _must_be_tensor(tensor, what)
    if tensor.device.type != "cpu":
        raise ValueError(f"{what} are on {tensor.device}; move them to the CPU")
    if tensor.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{what} are of {tensor.dtype}; convert them to int64 or int32")
    return tensor.detach().reshape(-1).to(torch.int64).contiguous()


class _Lookup(nn.Module):
    """Common base of both modules: open tables, and lookups of bags."""

    mode: str
    include_last_offset: bool

    def __init__(
        self,
        tables: Sequence[Table | str | os.PathLike[str]],
        *,
        memory: int | str,
        policy: str,
        io: str,
        mode: str,
        include_last_offset: bool,
    ) -> None:
        super().__init__()
        if mode not in ("sum", "mean", "max"):
            raise ValueError("mode has to be one of sum, mean or max")
        self.mode = mode
        self.include_last_offset = include_last_offset
        self._sources = tuple(map(_source, tables))
        self._options = (_size(memory), policy, io)
        self._tables = _native.Tables(list(self._sources), *self._options)
        self._shapes = self._tables.shapes()
        self._paddings: list[int | None] = [None] * len(self._shapes)
        self._dimensions = [dimension for _, _, dimension in self._shapes]
        self._columns = sum(self._dimensions)
        alike = len(set(self._dimensions)) == 1
        self._dimension = self._dimensions[0] if alike else None
        self._pooled_here = all(dtype == "float32" for dtype, _, _ in self._shapes)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_tables"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the files again: a copy has memory of its own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._tables = _native.Tables(list(self._sources), *self._options)
        if self._tables.shapes() != self._shapes:
            raise _native.TableError(
                "the files have other tables than when this was copied; open them again"
            )

    def stats(self) -> dict[str, Any]:
        """Return counters since the tables were opened, and what is in memory now.

        ``bundles`` lists the implications that the policy has learned as ``(from, to,
        confidence)``: the key of table ``from`` determines the key of table ``to``.
        """
        return {**self._tables.stats(), "bundles": self._tables.bundles()}

    def _replace(self, table: int, by: Table | str | os.PathLike[str]) -> None:
        self._must_exist(table)
        source = _source(by)
        self._tables.replace_table(table, source)
        self._sources = (*self._sources[:table], source, *self._sources[table + 1 :])

    def _must_exist(self, table: int) -> None:
        if not 0 <= table < len(self._shapes):
            raise IndexError(f"there is no table {table}; there are {len(self._shapes)}")

    def _replace_rows(self, table: int, first: int, rows: Tensor) -> None:
        self._must_exist(table)
        _must_be_tensor(rows, "rows")
        if first < 0:
            raise IndexError(f"the first row is {first}; rows are counted from 0")
        dtype, _, dimension = self._shapes[table]
        if rows.dim() != 2 or rows.shape[1] != dimension or rows.dtype != _DTYPES[dtype]:
            raise ValueError(
                f"rows are {tuple(rows.shape)} of {rows.dtype}; "
                f"this table's rows have {dimension} numbers of {dtype}"
            )
        raw = rows.detach().cpu().contiguous().view(torch.uint8).reshape(-1)
        self._tables.replace_rows(table, first, raw.numpy())

    def _look_up(self, bags: list[_Bags]) -> list[Tensor]:
        arguments = [
            each.argument(padding) for each, padding in zip(bags, self._paddings, strict=True)
        ]
        weighted = any(each.weights is not None for each in bags)
        if weighted and self.mode != "sum":
            raise NotImplementedError(
                "embedding_bag: per_sample_weights was not None. per_sample_weights is only "
                f"supported for mode='sum' (got mode='{self.mode}')."
            )
        if self._pooled_here and not weighted:
            pooled = _floats(bags[0].bags * self._columns)
            self._tables.lookup(arguments, self.mode, pooled.numpy())
            return self._by_table(pooled, bags[0].bags)
        return self._gather(bags, arguments)

    def _by_table(self, pooled: Tensor, samples: int) -> list[Tensor]:
        """Split the pooled output into one tensor per table."""
        if self._dimension is not None:
            return list(pooled.view(len(self._shapes), samples, self._dimension).unbind())
        sizes = [samples * dimension for dimension in self._dimensions]
        parts = zip(torch.split(pooled, sizes), self._dimensions, strict=True)
        return [part.view(samples, dimension) for part, dimension in parts]

    def _gather(self, bags: list[_Bags], arguments: list[_native.Bags]) -> list[Tensor]:
        """Fetch the rows and let PyTorch pool them: for weights, and dtypes other than float32."""
        sizes = [
            each.keys.numel() * dimension * _DTYPES[dtype].itemsize
            for each, (dtype, _, dimension) in zip(bags, self._shapes, strict=True)
        ]
        raw = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu")
        self._tables.gather(arguments, raw.numpy())
        results = []
        parts = zip(bags, torch.split(raw, sizes), self._shapes, self._paddings, strict=True)
        for each, part, (dtype, _, dimension), padding in parts:
            count = each.keys.numel()
            # One more row, to which all padding keys are mapped.
            rows = torch.zeros((count + 1, dimension), dtype=_DTYPES[dtype], device="cpu")
            rows[:count].view(torch.uint8).copy_(part.view(count, dimension * rows.itemsize))
            indices = torch.arange(count, device="cpu")
            if padding is not None:
                indices[each.keys == padding] = count
            results.append(
                F.embedding_bag(
                    indices,
                    rows,
                    each.starts(),
                    mode=self.mode,
                    per_sample_weights=each.weights,
                    include_last_offset=each.last,
                    padding_idx=None if padding is None else count,
                )
            )
        return results


def _padding(index: int | None, rows: int) -> int | None:
    if index is None:
        return None
    if not -rows <= index < rows:
        raise ValueError(f"padding_idx is {index}; it must be within the {rows} embeddings")
    return index % rows


class EmbeddingBag(_Lookup):
    """``torch.nn.EmbeddingBag`` for inference, with its rows in a file.

    Parameters are those of ``torch.nn.EmbeddingBag``, and these:

    table
        A path or a `Table`. Its shape must be ``(num_embeddings, embedding_dim)``.
    memory
        Memory for rows, their bookkeeping and kept buffers: an ``int``, or a string such as
        ``"2GiB"``. Bookkeeping is about 47 bytes per row. 0 keeps no row.
    policy
        Replacement policy; ``forebay embed policies`` lists them.
    io
        ``"auto"``, ``"io_uring"`` or ``"pread"``.

    ``sparse`` and ``scale_grad_by_freq`` have no effect, because rows have no gradients.
    ``max_norm``, which changes rows, is rejected.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        table: Table | str | os.PathLike[str],
        memory: int | str,
        policy: str = "group",
        io: str = "auto",
    ) -> None:
        if max_norm is not None:
            raise ValueError("max_norm would change rows during lookups; leave it out")
        if _weight is not None:
            raise ValueError("the rows come from `table`; leave out _weight")
        if device is not None and torch.device(device).type != "cpu":
            raise ValueError(f"device is {device}; tables are looked up on the CPU")
        if mode == "max" and scale_grad_by_freq:
            raise ValueError("max mode does not support scaling the gradient by the frequency")
        if mode == "max" and sparse:
            raise ValueError("max mode does not support sparse weights")
        super().__init__(
            [table],
            memory=memory,
            policy=policy,
            io=io,
            mode=mode,
            include_last_offset=include_last_offset,
        )
        ((found, rows, dimension),) = self._shapes
        if (rows, dimension) != (num_embeddings, embedding_dim):
            raise ValueError(
                f"the table has {rows} rows of {dimension} numbers, "
                f"not {num_embeddings} of {embedding_dim}"
            )
        if dtype not in (None, _DTYPES[found]):
            raise ValueError(f"the table is of {found}, not of {dtype}")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        self.max_norm = max_norm
        self.padding_idx = _padding(padding_idx, rows)
        self._paddings = [self.padding_idx]

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Look up bags; the same as ``torch.nn.EmbeddingBag.forward``."""
        last = self.include_last_offset
        if (
            offsets is not None
            and per_sample_weights is None
            and self._pooled_here
            and _are_indices(input)
            and _are_indices(offsets)
        ):
            # Fast path of the most common call.
            count = offsets.shape[0]
            pooled = _floats(max(count - 1, 0) if last else count, self.embedding_dim)
            self._tables.lookup_bags(
                input.numpy(), offsets.numpy(), last, self.padding_idx, self.mode, pooled.numpy()
            )
            return pooled
        bags = _Bags.check(input, offsets, last, per_sample_weights, single=False)
        (pooled,) = self._look_up([bags])
        return pooled

    def replace_table(self, by: Table | str | os.PathLike[str]) -> None:
        """Read rows from another file of the same shape from now on."""
        self._replace(0, by)

    def replace_rows(self, first: int, rows: Tensor) -> None:
        """Replace rows, in the file and in memory, while other threads look up."""
        self._replace_rows(0, first, rows)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"


class EmbeddingCollection(_Lookup):
    """The tables of a model, looked up together: all missing rows are read in one batch.

    Parameters
    ----------
    tables
        Paths, or `Table`\\ s.
    memory
        Memory for all rows, their bookkeeping and kept buffers: an ``int``, or a string such as
        ``"2GiB"``. Bookkeeping is about 47 bytes per row. 0 keeps no row.
    mode, include_last_offset, padding_idx
        As in ``torch.nn.EmbeddingBag``, for all tables; ``padding_idx`` may be a list.
    policy, io
        As in `EmbeddingBag`.
    """

    def __init__(
        self,
        tables: Sequence[Table | str | os.PathLike[str]],
        *,
        memory: int | str,
        mode: str = "sum",
        include_last_offset: bool = False,
        padding_idx: int | Sequence[int | None] | None = None,
        policy: str = "group",
        io: str = "auto",
    ) -> None:
        super().__init__(
            tables,
            memory=memory,
            policy=policy,
            io=io,
            mode=mode,
            include_last_offset=include_last_offset,
        )
        if padding_idx is None or isinstance(padding_idx, int):
            padding_idx = [padding_idx] * len(tables)
        self._paddings = [
            _padding(index, rows)
            for index, (_, rows, _) in zip(padding_idx, self._shapes, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and dimension of each table."""
        return [(rows, dimension) for _, rows, dimension in self._shapes]

    def forward(
        self,
        inputs: Tensor | Sequence[Tensor],
        offsets: Tensor | Sequence[Tensor] | None = None,
        per_sample_weights: Sequence[Tensor | None] | None = None,
    ) -> list[Tensor]:
        """Return one tensor per table, with one pooled row per sample.

        ``inputs`` and ``offsets`` have the arguments of ``torch.nn.EmbeddingBag`` for each table:
        as a list, or as a tensor whose first dimension is the table. Without offsets, each key of
        a one-dimensional input is a bag. The results are contiguous. If all tables are of float32
        and there are no weights, they are consecutive views of one tensor.
        """
        count = len(self._shapes)
        if (
            offsets is None
            and per_sample_weights is None
            and self._pooled_here
            and self.mode != "max"
            and isinstance(inputs, Tensor)
            and inputs.dim() == 2
            and inputs.shape[0] == count
        ):
            return self._look_up_single(inputs)
        if len(inputs) != count:
            raise ValueError(f"keys of {len(inputs)} tables; there are {count}")
        if offsets is not None and len(offsets) != count:
            raise ValueError(f"offsets of {len(offsets)} tables; there are {count}")
        if per_sample_weights is not None and len(per_sample_weights) != count:
            raise ValueError(f"weights of {len(per_sample_weights)} tables; there are {count}")
        bags = [
            _Bags.check(
                inputs[table],
                None if offsets is None else offsets[table],
                self.include_last_offset,
                None if per_sample_weights is None else per_sample_weights[table],
                single=True,
            )
            for table in range(count)
        ]
        return self._look_up(bags)

    def _look_up_single(self, keys: Tensor) -> list[Tensor]:
        """Fast path for one key per table and sample."""
        samples = keys.shape[1]
        pooled = _floats(samples * self._columns)
        keys = _indices(keys, "keys").view(keys.shape)
        self._tables.lookup_single(keys.numpy(), self._paddings, pooled.numpy())
        return self._by_table(pooled, samples)

    def prefetch(self, known: Mapping[int, Tensor]) -> int:
        """Bring rows into memory ahead of their lookup, and return the number of rows read.

        ``known`` maps table numbers to keys that are known early, such as the user's while features
        are still being computed. Rows of keys that these imply (``stats()["bundles"]``) are read
        too. The call blocks until the rows are read; call it in a thread to continue meanwhile.
        """
        return self._tables.prefetch(
            [(table, _indices(keys, "keys").numpy()) for table, keys in known.items()]
        )

    def replace_table(self, table: int, by: Table | str | os.PathLike[str]) -> None:
        """Read the rows of a table from another file of the same shape from now on."""
        self._replace(table, by)

    def replace_rows(self, table: int, first: int, rows: Tensor) -> None:
        """Replace rows, in the file and in memory, while other threads look up."""
        self._replace_rows(table, first, rows)

    def extra_repr(self) -> str:
        return f"{len(self)} tables, mode={self.mode!r}"
