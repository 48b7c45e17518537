"""``forebay.DataLoader``: PyTorch's loader, with an order that takes cached items first.

The order runs in the main process (``order``). The iterator counts the batches that were yielded
(``iteration``). Killed workers are replaced (``forebay._workers.pool``). Collation and everything
else are PyTorch's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch
from torch.utils import data

from forebay._data.dataset import Dataset
from forebay._data.map_style import T_co
from forebay._data.mixture import Mixture
from forebay._data.short_stats import ShortStats, loader_line
from forebay._data.wrap import SOURCES, Wrapped
from forebay._loader.checkpoint import checksum
from forebay._loader.deterministic import Deterministic
from forebay._loader.item_numbers import Lengths, Weights
from forebay._loader.iteration import Iteration
from forebay._loader.mixture_order import MixtureOrder
from forebay._loader.order import DividedSampler, Order, OrderSampler, checked_batch_size
from forebay._loader.stats import HitCounter, LoaderCounters, collect_stats
from forebay._loader.substitute import DrawnOrder, Replay, Substitute
from forebay._loader.torch_orders import Sequential, Strict, UserOrder
from forebay._native import StateError
from forebay._runtime.ranks import Ranks
from forebay._runtime.warnings import warn
from forebay._workers import pool
from forebay._workers.shm_batches import keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Unpack

#: Version of the state that ``state_dict`` returns.
STATE_VERSION = 4

OrderName = Literal["substitute", "deterministic", "strict", "replay"]
ORDERS = ("substitute", "deterministic", "strict", "replay")

State = dict[str, Any]


class LoaderOptions(TypedDict, total=False):
    """Arguments that PyTorch's loader takes and forebay passes on."""

    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool


class DataLoader(data.DataLoader[T_co]):
    """``torch.utils.data.DataLoader`` over a :class:`forebay.Dataset`.

    Parameters
    ----------
    dataset
        A ``forebay.Dataset``, the result of ``forebay.wrap``, or a ``forebay.Mixture``.
    order
        ``"substitute"``, the default with ``shuffle=True``: a random order that takes cached items
        first, each item once per epoch, among all ranks. ``"deterministic"``: a random order that
        depends on the generator's seed and the epoch alone. A step of all ranks takes the next
        ``world_size * batch_size`` items of it, so that steps have the same items with any number
        of ranks and workers, if that product is the same; cached items are not preferred.
        ``"strict"``, the default for wrapped datasets: the order of PyTorch's loader with the same
        generator. ``"replay"``: a recording of another loader, bit for bit. With a sampler or batch
        sampler of your own the order is always strict.
    replay
        The result of ``recording()``, for ``order="replay"``.
    lengths
        For ``order="substitute"`` and its replays: the name of a digest column, or one number per
        item. A batch then contains items of similar length, so that it has little padding. Items of
        a batch are random among those of similar length only (``docs/guide/train.md``).
    weights
        For ``order="substitute"`` and ``"deterministic"``: the name of a digest column, or one
        number per item, of at least 0. An epoch has as many items as the dataset, and each item in
        proportion to its weight: the expected number of times, rounded down or up at random.
    rank, world_size
        The rank of this process and the number of ranks, for orders that divide items:
        ``"substitute"`` and ``"deterministic"``. The default is from ``torch.distributed`` or the
        environment (``RANK``, ``WORLD_SIZE``; ``srun``), when an epoch begins. All ranks get the
        same number of batches; no ``DistributedSampler`` is needed.
    gpus
        GPUs that wait when the job waits for data, those of all ranks together, for
        ``order="substitute"`` and its replays. A node gives space where it saves most GPU time. The
        default is the number of ranks; for a single process, its devices.
    on_error
        What to do with items that cannot be read; replaces the value of :class:`forebay.Dataset`.
    options
        All other arguments of PyTorch's loader.

    Examples
    --------
    >>> loader = forebay.DataLoader(dataset, batch_size=100, shuffle=True, collate_fn=list)
    >>> epoch = iter(loader)
    >>> len(next(epoch))
    100
    >>> state = loader.state_dict()
    >>> again = forebay.DataLoader(dataset, batch_size=100, shuffle=True, collate_fn=list)
    >>> again.load_state_dict(state)
    >>> sum(len(batch) for batch in again)
    103
    >>> loader.stats()["items"]
    100
    """

    def __init__(
        self,
        dataset: Dataset[T_co] | Wrapped[T_co] | Mixture[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        *,
        order: OrderName | None = None,
        replay: bytes | None = None,
        lengths: Lengths | None = None,
        weights: Weights | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        gpus: int | None = None,
        on_error: Literal["raise", "skip", "retry"] | None = None,
        sampler: data.Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: data.Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        **of_torch: Unpack[LoaderOptions],
    ) -> None:
        options: dict[str, Any] = {**of_torch}
        if not isinstance(dataset, (*SOURCES, Mixture)):
            raise TypeError(_wrong_dataset(dataset))
        has_sampler = sampler is not None or batch_sampler is not None
        if order not in (None, *ORDERS):
            names = ", ".join(map(repr, ORDERS))
            raise ValueError(f"there is no order {order!r}; give one of {names}")
        if order in ("substitute", "deterministic") and (has_sampler or not shuffle):
            raise ValueError(f"order={order!r} shuffles: give shuffle=True and no sampler")
        if (order == "replay") != (replay is not None) or (order == "replay" and has_sampler):
            raise ValueError("order='replay' takes replay=loader.recording() and no sampler")
        if batch_size is not None and batch_sampler is None:
            batch_size = checked_batch_size(batch_size)
        is_mixture = isinstance(dataset, Mixture)
        if is_mixture and (has_sampler or not shuffle or order not in (None, "substitute")):
            raise ValueError("a mixture has an order of its own: give shuffle=True and no sampler")
        draws = bool(shuffle) and order in (None, "substitute") and not has_sampler
        takes_lengths = order == "replay" or draws
        if weights is not None and (
            is_mixture or lengths is not None or not (draws or order == "deterministic")
        ):
            raise ValueError(
                "weights= is for order='substitute' or 'deterministic' on one dataset, without"
                " lengths=: give shuffle=True, no sampler"
            )
        if lengths is not None and (is_mixture or not takes_lengths):
            raise ValueError(
                "lengths= is for order='substitute' on one dataset: give shuffle=True, no sampler"
            )
        if lengths is not None and batch_size is None:
            raise ValueError("lengths= needs batches, and batch_size=None has none")
        if on_error is not None:
            dataset._set_on_error(on_error)
        if dataset._on_error == "skip" and batch_size is None and batch_sampler is None:
            raise ValueError("on_error='skip' needs batches, and batch_size=None has none")
        ranks = Ranks(rank, world_size, gpus)
        size = batch_size or 1
        order_of: Order | None = None
        if has_sampler:
            # PyTorch checks that these go together.
            options.update(sampler=sampler, batch_sampler=batch_sampler, shuffle=shuffle or None)
        else:
            if isinstance(dataset, Mixture):
                order_of = MixtureOrder(dataset, size, drop_last, ranks, generator)
            elif replay is not None:
                order_of = Replay(dataset, size, drop_last, ranks, replay, lengths)
            elif not shuffle:
                order_of = Sequential(dataset, size, drop_last)
            elif order == "deterministic":
                order_of = Deterministic(dataset, size, drop_last, ranks, generator, weights)
            elif order == "strict" or (
                order is None and isinstance(dataset, Wrapped) and weights is None
            ):
                order_of = Strict(dataset, size, drop_last, generator)
            else:
                order_of = Substitute(dataset, size, drop_last, ranks, generator, lengths, weights)
            divides = isinstance(order_of, DrawnOrder | MixtureOrder | Deterministic)
            options["sampler"] = (DividedSampler if divides else OrderSampler)(order_of)
            self._order: Order = order_of
        self._counters = LoaderCounters()
        self._hits = HitCounter(dataset)
        #: Number of the epoch that persistent workers read.
        self._generation = 0
        gives_views = isinstance(dataset, Dataset) and dataset._gives_views
        if gives_views and batch_size is not None and options.get("collate_fn") is None:
            raise ValueError(
                "PyTorch cannot collate views: give a collate_fn or a transform, or views=False"
            )
        super().__init__(
            dataset,
            batch_size=batch_size,
            num_workers=num_workers,
            drop_last=drop_last,
            generator=generator,
            **options,
        )
        keep_freed_memory()
        if order_of is None:
            indices = super()._index_sampler
            self._order = UserOrder(dataset, indices, is_batched=indices is self.batch_sampler)
        elif drop_last and len(self) == 0 < len(dataset):
            warn(
                f"drop_last=True leaves nothing: this process gets less than one batch of {size}"
                f" of the {len(dataset)} items"
            )

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no workers yet, and begins with the next epoch."""
        return {**self.__dict__, "_iterator": None}

    def __iter__(self) -> Any:
        epoch = self._order.begin()
        self._generation += 1
        return Iteration(self, epoch, super().__iter__())

    def _get_iterator(self) -> Any:
        """The iterator for PyTorch's ``__iter__``: its own, or one that survives its workers."""
        if self.num_workers == 0 or not pool.SUPPORTED:
            return super()._get_iterator()
        dataset: Any = self.dataset
        # No reference to the loader, which may keep this iterator.
        return pool.SurvivingIterator(
            self, dataset._count_worker_restart, self._order.should_wait, self._order.draw
        )

    @property
    def _index_sampler(self) -> Any:
        """The sampler of PyTorch's iterators; a user's sampler goes through its order, which counts
        what was yielded.
        """
        order = getattr(self, "_order", None)
        return order if isinstance(order, UserOrder) else super()._index_sampler

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch, for samplers whose order depends on it.

        Parameters
        ----------
        epoch
            Number of the epoch, from 0.
        """
        batches = self.batch_sampler
        for sampler in (self.sampler, batches, getattr(batches, "sampler", None)):
            set_epoch = getattr(sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
                return

    def state_dict(self) -> State:
        """The position of the loader: exactly the batches that were yielded.

        Batches that workers have prefetched do not count. Every rank has its own state.

        Returns
        -------
        dict
            A small state that ``torch.save`` can write.

        Raises
        ------
        StateError
            The loader has ``in_order=False``.
        """
        if not getattr(self, "in_order", True):
            raise StateError("with in_order=False the rest is unknown; give in_order=True")
        head = {"version": STATE_VERSION, "order": self._order.name, "drop_last": self.drop_last}
        state = {**head, "dataset": self._order.dataset._id, **self._order.state()}
        return {**state, "checksum": checksum(state)}

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Continue from a state. Call this before the epoch begins.

        Parameters
        ----------
        state
            What ``state_dict`` returned on this rank. To continue with another number of ranks, or,
            with several ranks, another batch size: the list of the states of all ranks, the same
            list on every rank.

        Raises
        ------
        StateError
            The state is of another dataset, order, ``drop_last`` or version, or is damaged.
        """
        states: list[Any] = list(state) if isinstance(state, list | tuple) else [state]
        dataset, name = self._order.dataset, self._order.name
        if not states:
            raise StateError("there is no state in the list; give those of all ranks")
        for one in states:
            if not isinstance(one, Mapping) or "version" not in one:
                raise StateError("this is not a state of forebay.DataLoader; give its state_dict()")
            if one["version"] != STATE_VERSION:
                raise StateError(
                    f"the state is of version {one['version']}, and this forebay reads version"
                    f" {STATE_VERSION}; use the forebay that wrote it"
                )
            if one.get("checksum") != checksum(one):
                raise StateError("the state is damaged; use another checkpoint")
            if one.get("dataset") != dataset._id:
                raise StateError(
                    f"the state is of dataset {one.get('dataset')}, not of {dataset._id}; use the"
                    " digest of the checkpoint"
                )
            if one.get("order") != name:
                raise StateError(
                    f"the state is of order {one.get('order')!r}, not {name!r}; give the same order"
                )
            if (drops := one.get("drop_last")) != self.drop_last:
                raise StateError(f"the state is of drop_last={drops}; give drop_last={drops}")
        self._order.load([dict(one) for one in states])

    def recording(self) -> bytes:
        """A recording of the current epoch, or of the last one.

        Returns
        -------
        bytes
            The argument ``replay=`` of another loader.

        Raises
        ------
        StateError
            The order is not ``"substitute"``, the epoch was resumed, or nothing was yielded.
        """
        if not isinstance(self._order, DrawnOrder):
            raise StateError(_not_recorded(self._order))
        return self._order.recording()

    def stats(self) -> dict[str, Any]:
        """Statistics of this loader, over all its epochs.

        Returns
        -------
        dict
            Printed, it is one line for people; ``dict(loader.stats())`` prints all of these:

            ``batches``, ``items``
                Yielded batches and items.
            ``padding``
                Items repeated to keep ranks equal.
            ``skipped``
                Items that could not be read: their ``count``, and the first of the ``items``.
            ``hit_share``
                Share of the items read in this loader's epochs that the node had; ``None`` without
                a node. Loaders that take turns on one dataset share these counts. For a wrapped
                dataset it covers all its loaders.
            ``stall_seconds``, ``compute_seconds``
                Time inside the iterator's ``next``, and between two calls.
            ``pacing_seconds``
                Part of ``stall_seconds`` spent waiting for slower jobs.
            ``origin_bytes``
                Bytes that this job's agent has read from the origin, ahead or not.
            ``shuffle_quality``
                Distance of the epoch from a full shuffle, for which ``neighbours`` and
                ``displacement`` are 1 and ``pinned_lead`` is 0. A ``distance`` below 0.1 after a
                few hundred batches is as good as one. ``None`` for other orders and for mixtures.
            ``pinned_share``, ``drawable_share``
                Share of the dataset that is pinned, and share that is drawn from now; ``None`` for
                other orders.
            ``probes``, ``reports``
                Mini-batches read past the cache to measure its benefit; answers of the node.
            ``workers_restarted``
                Workers that were replaced.
            ``items_verified``, ``hash_mismatches``
                Items whose bytes were verified, and those that were wrong and were read again.
        """
        stats = collect_stats(self._order, self._counters, self._hits)
        return ShortStats(stats, loader_line)

    def __repr__(self) -> str:
        parts = [repr(self.dataset), f"batch_size={self.batch_size}", f"order={self._order.name!r}"]
        if self.num_workers:
            parts.append(f"num_workers={self.num_workers}")
        return f"forebay.DataLoader({', '.join(parts)})"


def _not_recorded(order: Order) -> str:
    """The error message for an order without recordings."""
    if isinstance(order, MixtureOrder):
        return "a mixture is not recorded; continue it with load_state_dict()"
    return "only order='substitute' is recorded; the other orders repeat with the same generator"


def _wrong_dataset(dataset: object) -> str:
    """The error message for a dataset of another type."""
    takes = "forebay.DataLoader takes a forebay.Dataset or Mixture"
    if isinstance(dataset, data.IterableDataset):
        return f"{takes}; give iterable datasets, also forebay's, to torch.utils.data.DataLoader"
    if isinstance(getattr(dataset, "dataset", None), SOURCES):
        return f"{takes}: for a part of one, give dataset.subset(indices) or dataset.split(0.9)"
    return f"{takes}; give others to forebay.wrap"
