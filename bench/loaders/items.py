"""The dataset of the benchmark: JPEGs of about 110 kB, so that the same bytes can be decoded.

Encoding thousands of pictures would take longer than the benchmark. So a few are encoded, and each
item is one of them with a comment of random bytes and random length: no two are equal, none is
compressible, and every one decodes.
"""

from __future__ import annotations

import io
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

#: Width and height, about those of ImageNet.
SIZE = (500, 375)
QUALITY = 93
PICTURES = 24
#: Smallest and largest length of a comment. No item is shorter than ``SHORTEST``.
COMMENT = (1_000, 21_000)
SHORTEST = 90_000


@dataclass(frozen=True)
class Items:
    """A directory of items in the origin, with totals."""

    directory: Path
    count: int
    #: Total bytes.
    size: int
    #: The sum of all items' CRC-32, which does not depend on their order.
    checksum: int

    @property
    def bucket(self) -> Path:
        """The origin's bucket, where loaders write their own formats."""
        return self.directory.parent

    @property
    def scratch(self) -> Path:
        """A directory outside the origin."""
        return self.bucket.parent.parent

    def paths(self) -> list[Path]:
        return sorted(self.directory.iterdir())

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Names and bytes, in order."""
        for path in self.paths():
            yield path.stem, path.read_bytes()


def make(directory: Path, count: int) -> Items:
    """Write ``count`` items."""
    directory.mkdir(parents=True)
    source = random.Random(5)
    pictures = [_picture(seed) for seed in range(PICTURES)]
    size = checksum = 0
    for item in range(count):
        content = _commented(pictures[item % PICTURES], source.randbytes(source.randint(*COMMENT)))
        assert len(content) >= SHORTEST, len(content)
        (directory / f"{item:06}.jpg").write_bytes(content)
        size += len(content)
        checksum += zlib.crc32(content)
    return Items(directory, count, size, checksum)


def _picture(seed: int) -> bytes:
    """A picture of smooth colours with noise."""
    source = np.random.default_rng(seed)
    width, height = SIZE
    coarse = source.integers(0, 256, (height // 25, width // 25, 3), dtype=np.uint8)
    clouds = np.asarray(Image.fromarray(coarse).resize(SIZE, Image.Resampling.BICUBIC))
    grain = source.normal(0, 12, (height, width, 3))
    pixels = np.clip(clouds + grain, 0, 255).astype(np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "JPEG", quality=QUALITY)
    return encoded.getvalue()


def _commented(picture: bytes, comment: bytes) -> bytes:
    """The same picture with a comment after the JPEG's start marker."""
    marker = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big")
    return picture[:2] + marker + comment + picture[2:]
