"""Datasets: what ``forebay.Dataset``, ``wrap``, ``Mixture`` and ``IterableDataset`` read.

- ``dataset``: items of a digest; ``columns``: its columns; ``labels``, ``decoders``: classes and
  images or sounds of items; ``parts``: splits, subsets, filters and repeats.
- ``map_style``: the base class of datasets, and their indices; ``short_stats``: statistics that
  print as one line.
- ``auto_digest``: digests that are built on first use of a URL.
- ``wrap``: any map-style dataset, cached; ``keyed_items``: how its items are found and read;
  ``serialization``: items and keys as bytes.
- ``tar``: samples of tar archives.
- ``mixture``: several datasets in fixed proportions.
- ``iterable``: a dataset as an iterable.
- ``prefetch``: hints to the agent about items that will be read soon.

``iterable`` imports PyTorch, and ``map_style`` if it is installed.
"""
