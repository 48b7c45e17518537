"""A user's script: type checkers accept it, and items have the stated types."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Subset, random_split
from typing_extensions import assert_type

import forebay


def decode(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def plain(options: dict[str, str]) -> None:
    """Bytes, with PyTorch's own loader and views."""
    dataset = forebay.Dataset("s3://bucket/train", storage_options=options, verify=0.1)
    assert_type(dataset, forebay.Dataset[bytes])
    assert_type(dataset[0], bytes)
    assert_type(dataset[:10], list[bytes])
    assert_type(dataset[[1, 2]], list[bytes])
    assert_type(Subset(dataset, [1, 2]), Subset[bytes])
    assert_type(random_split(dataset, [0.5, 0.5]), list[Subset[bytes]])
    loader: DataLoader[bytes] = DataLoader(dataset, batch_size=4, collate_fn=list)
    for _ in loader:
        pass


def transformed() -> None:
    """Items of the transform's type, in all parts."""
    dataset = forebay.Dataset("train.digest", transform=decode, cache=None)
    assert_type(dataset, forebay.Dataset[torch.Tensor])
    train, *_ = dataset.split(0.9, seed=1)
    assert_type(train[0], torch.Tensor)
    assert_type(dataset.subset([1, 2]), forebay.Dataset[torch.Tensor])
    loader = forebay.DataLoader(
        train, batch_size=8, shuffle=True, order="deterministic", num_workers=2, pin_memory=True
    )
    assert_type(loader, forebay.DataLoader[torch.Tensor])
    mixture = forebay.Mixture([(train, 0.5), (dataset, 0.5)])
    assert_type(mixture[0], torch.Tensor)


def labelled(dataset: forebay.Dataset) -> None:
    """A dataset without a type parameter has items of any type."""
    labels = forebay.Dataset("s3://bucket/images", labels="directory")
    assert_type(labels[0], tuple[bytes, int])
    count: int = dataset[0]
    wrapped = forebay.wrap([1, 2, 3], name="numbers")
    assert_type(wrapped[count], int)
    access: forebay.StorageOptions = {"region": "eu-west-1", "profile": "work"}
    forebay.Dataset("s3://bucket/train", storage_options=access)
