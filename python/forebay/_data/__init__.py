"""Datasets: what ``forebay.Dataset``, ``wrap``, ``Mixture`` and ``IterableDataset`` read.

- ``dataset``: items of a digest; ``columns``: its columns.
- ``auto_digest``: digests that are built on first use of a URL.
- ``wrap``: any map-style dataset, cached; ``keyed_items``: how its items are found and read;
  ``serialization``: items and keys as bytes.
- ``tar``: samples of tar archives.
- ``mixture``: several datasets in fixed proportions.
- ``iterable``: a dataset as an iterable.
- ``prefetch``: hints to the agent about items that will be read soon.

Only ``iterable`` imports PyTorch.
"""
