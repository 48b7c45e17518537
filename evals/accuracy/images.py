"""CIFAR-10, as records of 3,073 bytes, and a small convolutional network.

The images come as small JPEG or PNG files. They are decoded once and stored in CIFAR-10's own
binary format: a byte for the class, then three planes of 32 x 32. A tenth of that is large enough
for a cache (a node has 8 MiB at least). Sorted by class it is the hardest case for a sampler:
neighbouring items are of one class.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE

Batch = tuple[Tensor, Tensor]


def prepare(source: Path, directory: Path) -> None:
    """Write a file of records for every class of the training set, and the test set as one file."""
    images = dict[tuple[str, str], list[bytes]]()
    for name, content in _files(source):
        part, label = name.split("/")[-3:-1]
        images.setdefault((part, label), []).append(content)
    labels = sorted({label for _, label in images})
    (directory / "train").mkdir(parents=True)
    test = []
    for (part, label), files in sorted(images.items()):
        records = b"".join(bytes([labels.index(label)]) + _planes(file) for file in files)
        if part == "train":
            (directory / "train" / f"{label}.bin").write_bytes(records)
        else:
            test.append(records)
    (directory / "test.bin").write_bytes(b"".join(test))


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    """The images of an archive or a directory: ``train/CLASS/NAME`` and ``test/CLASS/NAME``."""
    endings = (".jpg", ".jpeg", ".png")
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.suffix in endings:
                yield path.relative_to(source.parent).as_posix(), path.read_bytes()
        return
    with zipfile.ZipFile(source) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(endings):
                yield name, archive.read(name)


def _planes(file: bytes) -> bytes:
    try:
        from PIL import Image
    except ImportError:
        raise SystemExit("Pillow is not installed; `pip install pillow`") from None
    pixels = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
    if pixels.shape != (SIDE, SIDE, 3):
        raise SystemExit(
            f"an image has {pixels.shape[1]} x {pixels.shape[0]} pixels; CIFAR's have 32 x 32"
        )
    planes: bytes = pixels.transpose(2, 0, 1).tobytes()
    return planes


def decode(record: bytes) -> Batch:
    """An item's pixels and class."""
    values = torch.frombuffer(bytearray(record), dtype=torch.uint8)
    return values[1:].view(3, SIDE, SIDE), values[0].long()


def collate(items: list[Batch]) -> Batch:
    """A batch: pixels, centred at 0, and classes."""
    pixels = torch.stack([pixels for pixels, _ in items])
    return pixels.float() / 64.0 - 2.0, torch.stack([label for _, label in items])


class Files(torch.utils.data.Dataset[Batch]):
    """The training set as local files, for PyTorch's own loader."""

    def __init__(self, directory: Path) -> None:
        files = sorted((directory / "train").iterdir())
        self._records = np.concatenate([np.fromfile(file, dtype=np.uint8) for file in files])

    def __len__(self) -> int:
        return len(self._records) // RECORD

    def __getitem__(self, item: int) -> Batch:
        return decode(self._records[item * RECORD : (item + 1) * RECORD].tobytes())


def test_set(directory: Path) -> list[Batch]:
    """The test set, in batches."""
    records = (directory / "test.bin").read_bytes()
    items = [decode(records[at : at + RECORD]) for at in range(0, len(records), RECORD)]
    return [collate(items[at : at + 500]) for at in range(0, len(items), 500)]


class Network(nn.Sequential):
    """Three convolutions with batch norm, which makes accuracy depend on the mix of a batch."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 12), (12, 24), (24, 48)):
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*layers, nn.Flatten(), nn.Linear(48 * 16, 10))
