"""PyTorch's ``DataLoader``, told what is cached.

All that differs is the sampler, which runs in the main process (``_orders.py``), and that the
loader knows what its user has been given: the iterator counts, times and reports around PyTorch's.
Workers, collation and everything else are PyTorch's, except that workers which are killed are
replaced (``_workers.py``).
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Literal

import torch
from torch.utils import data

from forebay import _workers
from forebay._dataset import Dataset
from forebay._drawn import Drawn, Lengths, Replay, Substitute, SubstituteEpoch
from forebay._given import Own, Sequential, Strict
from forebay._handover import keep_memory
from forebay._interrupts import held
from forebay._mixture import Mixture, MixtureEpoch, MixtureOrder
from forebay._native import ForebayError, StateError
from forebay._orders import Epoch, Items, Order, Source, checked_size, checksum
from forebay._ranks import checked, ranks
from forebay._warnings import warn
from forebay._wrap import Wrapped

#: Of what ``state_dict`` returns.
STATE_VERSION = 3
#: While other jobs are waited for, it is looked so often whether they have come along.
WAIT_SECONDS = 0.005

ORDERS = ("substitute", "strict", "replay")

State = dict[str, Any]


class DataLoader(data.DataLoader[Any]):
    """``torch.utils.data.DataLoader`` over a :class:`forebay.Dataset`.

    Parameters
    ----------
    dataset
        A ``forebay.Dataset``, what ``forebay.wrap`` returned, or a ``forebay.Mixture``.
    order
        ``"substitute"``, the default when shuffling: a random order that prefers what is cached;
        every item once an epoch, among all ranks. ``"strict"``, the default for wrapped datasets:
        the order of PyTorch's own loader with the same generator. ``"replay"``: what another loader
        recorded, bit for bit. With a sampler or batch sampler of your own it is always strict.
    replay
        What ``recording()`` gave, for ``order="replay"``.
    lengths
        For ``order="substitute"`` and its replays: how long each item is, as the name of a column
        of the digest or a number for each item. Batches are then made of items of like length, so
        that little of them is padding. Which items come together is then random among those of
        like length only (``docs/train.md``).
    rank, world_size
        Which process of the job this is, for ``order="substitute"``. By default as
        ``torch.distributed`` or the environment (``RANK``, ``WORLD_SIZE``) says. All ranks are
        given equally many batches; no ``DistributedSampler`` is needed.
    on_error
        What becomes of items that cannot be read: see :class:`forebay.Dataset`, whose choice this
        replaces.
    options
        Whatever PyTorch's loader takes.

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
        dataset: Source | Mixture,
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        *,
        order: Literal["substitute", "strict", "replay"] | None = None,
        replay: bytes | None = None,
        lengths: Lengths | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        on_error: Literal["raise", "skip", "retry"] | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(dataset, Source | Mixture):
            raise TypeError(_instead(dataset))
        own = sampler is not None or batch_sampler is not None
        if order not in (None, *ORDERS):
            there_are = ", ".join(map(repr, ORDERS))
            raise ValueError(f"there is no order {order!r}; there are {there_are}")
        if order == "substitute" and (own or not shuffle):
            raise ValueError("order='substitute' shuffles: give shuffle=True and no sampler")
        if (order == "replay") != (replay is not None) or (order == "replay" and own):
            raise ValueError("order='replay' takes replay=loader.recording() and no sampler")
        if batch_size is not None and batch_sampler is None:
            batch_size = checked_size(batch_size)
        is_mixed = isinstance(dataset, Mixture)
        if is_mixed and (own or not shuffle or order not in (None, "substitute")):
            raise ValueError("a mixture has an order of its own: give shuffle=True and no sampler")
        can_be_alike = order == "replay" or (shuffle and order != "strict" and not own)
        if lengths is not None and (is_mixed or not can_be_alike):
            raise ValueError(
                "lengths= is for order='substitute' on one dataset: give shuffle=True, no sampler"
            )
        if lengths is not None and batch_size is None:
            raise ValueError("lengths= makes batches alike, and batch_size=None has none")
        if on_error is not None:
            dataset.on_error = on_error
        if dataset.on_error == "skip" and batch_size is None and batch_sampler is None:
            raise ValueError("on_error='skip' fills up batches, and batch_size=None has none")
        if (rank is None) != (world_size is None):
            raise ValueError("give both rank and world_size, or neither")
        of_world = ranks() if rank is None or world_size is None else checked(rank, world_size)
        size = batch_size or 1
        order_of: Order | None = None
        if own:
            # PyTorch refuses what does not go together.
            options.update(sampler=sampler, batch_sampler=batch_sampler, shuffle=shuffle or None)
        else:
            if isinstance(dataset, Mixture):
                order_of = MixtureOrder(dataset, size, drop_last, of_world, generator)
            elif replay is not None:
                order_of = Replay(dataset, size, drop_last, of_world, replay, lengths)
            elif not shuffle:
                order_of = Sequential(dataset, size, drop_last)
            elif order == "strict" or (order is None and isinstance(dataset, Wrapped)):
                order_of = Strict(dataset, size, drop_last, generator)
            else:
                order_of = Substitute(dataset, size, drop_last, of_world, generator, lengths)
            options["sampler"] = Items(order_of)
            self._order: Order = order_of
        self._clock = _Clock()
        self._hits = _Hits(dataset)
        #: Of the epoch that persistent workers read.
        self._generation = 0
        is_plain = isinstance(dataset, Dataset) and dataset.gives_views
        if is_plain and batch_size is not None and options.get("collate_fn") is None:
            raise ValueError(
                "PyTorch cannot collate views: give a collate_fn or a transform, or views=False"
            )
        super().__init__(
            dataset,  # type: ignore[arg-type] # map-style by its methods, not by its base
            batch_size=batch_size,
            num_workers=num_workers,
            drop_last=drop_last,
            generator=generator,
            **options,
        )
        keep_memory()
        if order_of is None:
            indices = super()._index_sampler
            self._order = Own(dataset, indices, is_batched=indices is self.batch_sampler)
        elif drop_last and len(self) == 0 < len(dataset):
            warn(
                f"drop_last=True leaves nothing: of {len(dataset)} items this process is given"
                f" less than a batch of {size}"
            )

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no workers yet, and begins the next epoch."""
        return {**self.__dict__, "_iterator": None}

    def __iter__(self) -> Any:
        epoch = self._order.begin()
        self._generation += 1
        return _Iteration(self, epoch, super().__iter__())

    def _get_iterator(self) -> Any:
        """What PyTorch's ``__iter__`` calls: its own iterator, or one that survives its workers."""
        if self.num_workers == 0 or not _workers.SUPPORTED:
            return super()._get_iterator()
        dataset: Any = self.dataset
        # Nothing of the loader itself, which may keep this iterator.
        return _workers.SurvivingIterator(
            self, dataset.count_worker_restart, self._order.holds_back, self._order.draw
        )

    @property
    def _index_sampler(self) -> Any:
        """What PyTorch's iterators draw from; a sampler of one's own is drawn from through us, so
        that it is known what was yielded of it.
        """
        order = getattr(self, "_order", None)
        return order if isinstance(order, Own) else super()._index_sampler

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next one is, for samplers whose order depends on it."""
        batches = self.batch_sampler
        for sampler in (self.sampler, batches, getattr(batches, "sampler", None)):
            set_epoch = getattr(sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
                return

    def state_dict(self) -> State:
        """Where the loader is: exactly what was yielded counts, whatever workers have prefetched.

        Small, and ``torch.save`` takes it. Every rank has its own.
        """
        if not getattr(self, "in_order", True):
            raise StateError("with in_order=False nobody knows what is left; give in_order=True")
        kept = {"version": STATE_VERSION, "order": self._order.name, "drop_last": self.drop_last}
        state = {**kept, "dataset": self._order.dataset.id, **self._order.state()}
        return {**state, "checksum": checksum(state)}

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Go on where a loader was; call it before the epoch begins.

        A list of the states of all ranks deals what is left to the ranks that there are now,
        however many those are; it is the same list on all of them.

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
                raise StateError("this is not a state of forebay.DataLoader")
            if one["version"] != STATE_VERSION:
                raise StateError(
                    f"the state is of version {one['version']}, and this forebay knows version"
                    f" {STATE_VERSION}; use the forebay that it was taken with"
                )
            if one.get("checksum") != checksum(one):
                raise StateError("the state is damaged; go on from another checkpoint")
            if one.get("dataset") != dataset.id:
                raise StateError(
                    f"the state is of dataset {one.get('dataset')}, not of {dataset.id};"
                    " use the digest that it was taken with"
                )
            if one.get("order") != name:
                raise StateError(f"the state is of order {one.get('order')!r}, not {name!r}")
            if (drops := one.get("drop_last")) != self.drop_last:
                raise StateError(f"the state is of drop_last={drops}; give drop_last={drops}")
        self._order.load([dict(one) for one in states])

    def recording(self) -> bytes:
        """What was yielded of the epoch at hand, or of the last one: for another's ``replay=``."""
        if not isinstance(self._order, Drawn):
            raise StateError(_unrecorded(self._order))
        return self._order.recording()

    def stats(self) -> dict[str, Any]:
        """How it goes: what was given, from where, and what was waited for.

        ``batches``, ``items``
            Given so far, in all epochs; ``padding`` are items that were repeated so that ranks stay
            equal, ``skipped`` those that could not be read (``count``, and the first of the
            ``items``).
        ``hit_share``
            Of the items that were read in this loader's epochs, how many the node had. ``None``
            without a node. Loaders that take turns on one dataset share what is counted; of a
            wrapped dataset it is that of all its loaders.
        ``stall_seconds``, ``compute_seconds``
            Time inside of the iterator's ``next``, and between two of them. ``waited_seconds`` of
            the former were for other jobs, which have yet to read what the cache holds.
        ``origin_bytes``
            What this job's agent has read from the origin, ahead or not.
        ``mixing``
            How far the epoch is from a full shuffle: ``neighbours`` and ``displacement`` are 1 and
            ``held_lead`` is 0 if it is none; ``distance`` below 0.1 is good after some hundred
            batches. ``None`` for orders that are not drawn, and for mixtures.
        ``held_share``, ``open_share``
            How much of the dataset the node holds for good, and what is drawn from now; ``None``
            for orders that are not drawn.
        ``probes``, ``reports``
            Batches that were read past the cache to see what it is worth, and answers of the node.
        ``workers_restarted``
            Workers that were replaced, because one of them died.
        """
        dataset = self._order.dataset
        counted: dict[str, Any]
        try:
            counted = dataset.stats()
        except ForebayError:
            counted = {"node": None, "agent": {}, "loader": {"workers_restarted": 0}}
        counts, epoch = self._order.counts(), self._order.current
        mixing = None
        if isinstance(epoch, SubstituteEpoch):
            with epoch.lock:
                mixing = epoch.sampler.mixing()
        drawn = _drawn(epoch)
        held, opened = _shares(drawn)
        agent = counted.get("agent") or {}
        if isinstance(dataset, Wrapped):
            hits = counted["hits"] / counted["items"] if counted.get("items") else None
        else:
            hits = self._hits.share()
        return {
            "batches": self._clock.batches,
            "items": self._clock.items,
            "padding": counts.get("padding", 0),
            "skipped": dataset.skipped(),
            "hit_share": _share(hits),
            "stall_seconds": self._clock.stalled,
            "waited_seconds": self._clock.waited,
            "compute_seconds": self._clock.computed,
            "origin_bytes": agent.get("agent_origin_bytes", 0),
            "mixing": mixing,
            "held_share": _share(held),
            "open_share": _share(opened),
            "probes": counts.get("probes", 0),
            "reports": sum(one.member.reports for one in drawn),
            "workers_restarted": counted["loader"]["workers_restarted"],
        }


class _Clock:
    """What a loader's iterators have counted."""

    def __init__(self) -> None:
        self.batches = 0
        self.items = 0
        self.stalled = 0.0
        self.computed = 0.0
        #: Of what it was stalled: for other jobs.
        self.waited = 0.0


class _Hits:
    """Of the items that were read while a loader's epochs ran, how many the node had."""

    def __init__(self, dataset: Source | Mixture) -> None:
        self._dataset = dataset
        self._read = self._missed = 0
        #: What had been read and missed when this was last looked at; nothing between epochs.
        self._since: tuple[int, int] | None = None

    def begin(self) -> None:
        """An epoch begins."""
        self._count()
        self._since = self._now()

    def end(self) -> None:
        """It has ended."""
        self._count()
        self._since = None

    def share(self) -> float | None:
        if not self._dataset.has_node:
            return None
        self._count()
        return max(0.0, 1.0 - self._missed / self._read) if self._read else None

    def _now(self) -> tuple[int, int]:
        return self._dataset.given, self._dataset.missed()

    def _count(self) -> None:
        since = self._since
        if since is not None:
            self._since = now = self._now()
            self._read += now[0] - since[0]
            # An agent that was replaced counts from nought.
            self._missed += max(0, now[1] - since[1])


def _drawn(epoch: Epoch | None) -> list[SubstituteEpoch]:
    """The epochs that the node has a say in: this one, or those that it is mixed of."""
    parts = epoch.parts if isinstance(epoch, MixtureEpoch) else [epoch]
    return [part for part in parts if isinstance(part, SubstituteEpoch)]


def _shares(drawn: Sequence[SubstituteEpoch]) -> tuple[float | None, float | None]:
    """How much of all their items is held for good, and is open."""
    items = [len(one.dataset) for one in drawn]
    if not items:
        return None, None
    parts = zip(*(one.shares() for one in drawn), strict=True)
    held, opened = (sum(map(operator.mul, shares, items)) / sum(items) for shares in parts)
    return held, opened


def _share(share: float | None) -> float | None:
    """As people read it."""
    return None if share is None else abs(round(share, 6))


def _unrecorded(order: Order) -> str:
    """Why there is no recording."""
    if isinstance(order, MixtureOrder):
        return "a mixture is not recorded; load_state_dict() goes on with it"
    return "only order='substitute' is recorded; the others can be had again"


def _instead(dataset: object) -> str:
    """What to do with a dataset that is not ours."""
    takes = "forebay.DataLoader takes a forebay.Dataset or Mixture"
    if isinstance(dataset, data.IterableDataset):
        return f"{takes}; torch.utils.data.DataLoader reads iterable ones, forebay's as well"
    if isinstance(getattr(dataset, "dataset", None), Source):
        return (
            f"{takes}: for a part of one, give the dataset itself and"
            " sampler=torch.utils.data.SubsetRandomSampler(indices), or build a digest of the part"
        )
    return f"{takes}; give others to forebay.wrap"


class _Iteration:
    """PyTorch's iterator of one epoch; what passes through here has been given to the user."""

    def __init__(self, loader: DataLoader, epoch: Epoch, inner: Any) -> None:
        #: Batches that the node was asked for ahead.
        self._asked: list[list[int]] = []
        self._loader, self._epoch, self._inner = loader, epoch, inner
        self._generation = loader._generation
        self._clock = loader._clock
        #: Until when it was counted how long the user has waited.
        self._counted = 0.0
        #: When the last batch was asked for, and how long it was waited for.
        self._last: tuple[float, float] | None = None
        self._fenced: ForebayError | None = None
        # What workers have handed over is counted, whatever comes in between.
        survives = isinstance(inner, _workers.SurvivingIterator)
        self._hold: Callable[[], Any] = held if survives else nullcontext
        loader._hits.begin()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._inner)

    def __next__(self) -> Any:
        if self._epoch.has_ended:
            raise StopIteration
        self._check_workers()
        self._counted = entered = time.perf_counter()
        self._has_computed(entered)
        try:
            self._prepare()
            with self._hold():
                return self._take(entered)
        except StopIteration:
            self._end()
            raise
        finally:
            self._count_stall()

    def _check_workers(self) -> None:
        """What persistent workers read is the epoch that was begun last, and nobody else's."""
        loader = self._loader
        if loader.persistent_workers and loader._generation != self._generation:
            raise RuntimeError(
                "another epoch was begun with the same persistent workers, which have left this"
                " one; go on with the iterator of that one, or give persistent_workers=False, so"
                " that every iterator has workers of its own"
            )

    def _take(self, entered: float) -> Any:
        given = self._given()
        try:
            batch = next(self._inner)
        except StopIteration as problem:
            is_a_batch = self._epoch.is_awaited if given is None else self._given() != given
            if not is_a_batch:
                raise
            self._has_yielded(entered)
            raise RuntimeError(
                "a batch raised StopIteration, which an iterator's user would take for its end"
            ) from problem
        except Exception:
            # A batch whose error is raised here has been given, too: the next one follows it.
            if given is None or self._given() != given:
                self._has_yielded(entered)
            raise
        self._has_yielded(entered)
        return batch

    def _prepare(self) -> None:
        """All that may fail or be interrupted happens before PyTorch asks for indices: it would
        take that for the end of the epoch.
        """
        epoch, inner = self._epoch, self._inner
        if self._fenced is not None:
            raise self._fenced
        self._loader._order.current = epoch
        if self._loader.num_workers == 0:
            with held():
                epoch.give_back()
                if hasattr(inner, "_sampler_iter"):
                    # A Ctrl-C may have ended the last one, or have come after all was drawn.
                    inner._sampler_iter = iter(inner._index_sampler)
        self._report()
        epoch.fill()
        while not epoch.is_awaited and epoch.holds_back():
            self._wait_for_others()
        if isinstance(inner, _workers.SurvivingIterator):
            inner.top_up()
        self._ask_ahead(epoch)

    def _report(self) -> None:
        try:
            self._epoch.report()
        except ForebayError as problem:
            self._fenced = problem
            raise

    def _wait_for_others(self) -> None:
        """The user has all that was drawn, and the rest of what is open is for jobs behind us."""
        began = time.perf_counter()
        time.sleep(WAIT_SECONDS)
        self._report()
        waited = time.perf_counter() - began
        self._epoch.waited(waited)
        self._count_stall()
        self._clock.waited += waited
        self._epoch.fill()

    def _ask_ahead(self, epoch: Epoch) -> None:
        """Without workers the node reads the next batches while this one is decoded and used."""
        if self._loader.num_workers > 0:
            return
        following = epoch.after_next()
        for batch in following:
            if not any(batch is asked for asked in self._asked):
                self._loader._order.dataset.ask(batch)
        self._asked = following

    def __del__(self) -> None:
        self._give_up()

    def _give_up(self) -> None:
        """What was asked for ahead will not be taken: its room on the node is free again."""
        asked, self._asked = self._asked, []
        for batch in asked:
            with suppress(ForebayError):
                self._loader._order.dataset.give_up(batch)

    def _given(self) -> int | None:
        """Batches that PyTorch has handed over, or whose error; ``None`` if it does not tell."""
        given: int | None = getattr(self._inner, "given", None)
        return given

    def _has_yielded(self, entered: float) -> None:
        with held():
            self._last = (entered, time.perf_counter() - entered)
            items = self._epoch.yielded()
            self._clock.batches += 1
            self._clock.items += items
            self._loader._order.dataset.given += items

    def _count_stall(self) -> None:
        """Whatever ends the waiting: also a Ctrl-C, or the epoch's end."""
        now = time.perf_counter()
        self._clock.stalled += now - self._counted
        self._counted = now

    def _has_computed(self, now: float) -> None:
        """The user asks for the next batch: the last one is done with."""
        if self._last is None:
            return
        began, stalled = self._last
        self._last = None
        self._clock.computed += max(0.0, now - began - stalled)
        self._epoch.computed(now - began, stalled)

    def _end(self) -> None:
        epoch = self._epoch
        if not epoch.is_exhausted:
            raise RuntimeError(
                "the epoch was interrupted while a batch was drawn; go on with load_state_dict"
            )
        epoch.has_ended = True
        self._give_up()
        self._loader._hits.end()
        epoch.report()
