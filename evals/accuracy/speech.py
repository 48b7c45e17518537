"""The Free Spoken Digit Dataset, as WAV files of different lengths, and a small recurrent network.

The first 15 of the 50 recordings of every speaker and digit are the test set. The others are
augmented by three speeds, as is usual, and stored as 32-bit float: 6,300 files, sorted by digit. A
tenth of that is large enough for a cache (a node has 8 MiB at least).
"""

from __future__ import annotations

import io
import struct
import wave
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torch.nn.utils.rnn import pad_sequence

RATE = 8000
SPEEDS = (0.9, 1.0, 1.1)
TEST_RECORDINGS = 15
BANDS, WINDOW, HOP = 24, 256, 80

#: Padded frames of all items, each item's number of frames, and the digits.
Batch = tuple[Tensor, Tensor, Tensor]
Item = tuple[Tensor, int]


def prepare(source: Path, directory: Path) -> None:
    """Write the training set with a table of digits and lengths, and the test set."""
    for part in ("train", "test"):
        (directory / part).mkdir(parents=True)
    rows = ["object,digit,seconds"]
    for name, content in _files(source):
        digit, _, number = Path(name).stem.split("_")
        with wave.open(io.BytesIO(content)) as recording:
            if (recording.getframerate(), recording.getsampwidth()) != (RATE, 2):
                raise SystemExit(
                    f"`{name}` does not have 8 kHz and 16 bits; give the original files"
                )
            frames = recording.readframes(recording.getnframes())
        samples = np.frombuffer(frames, dtype="<i2").astype(np.float32) / 32768.0
        if int(number) < TEST_RECORDINGS:
            (directory / "test" / Path(name).name).write_bytes(_wav(samples))
            continue
        for speed in SPEEDS:
            length = round(len(samples) / speed)
            played = interpolate(torch.from_numpy(samples)[None, None], length, mode="linear")
            key = f"{Path(name).stem}_{round(speed * 100)}.wav"
            (directory / "train" / key).write_bytes(_wav(played.squeeze().numpy()))
            rows.append(f"{key},{digit},{length / RATE}")
    (directory / "columns.csv").write_text("\n".join(rows) + "\n")


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    """The recordings of an archive or a directory: ``DIGIT_SPEAKER_NUMBER.wav``."""
    if source.is_dir():
        for path in sorted(source.rglob("*.wav")):
            yield path.name, path.read_bytes()
        return
    with zipfile.ZipFile(source) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".wav"):
                yield name, archive.read(name)


def _wav(samples: np.ndarray[tuple[int], np.dtype[np.float32]]) -> bytes:
    """A WAV file of 32-bit float, which Python's `wave` cannot write."""
    data = samples.astype("<f4").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3, 1, RATE, RATE * 4, 4, 32)
    data = struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI4s", b"RIFF", 4 + len(form) + len(data), b"WAVE") + form + data


def _bands() -> Tensor:
    """Triangular filters, evenly spaced on the mel scale."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    up = (bins[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    down = (edges[2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    return torch.from_numpy(np.clip(np.minimum(up, down), 0, None)).float()


_MEL, _HANN = _bands(), torch.hann_window(WINDOW)


def decode(item: tuple[bytes, int]) -> Item:
    """An item's spectrogram, with a frame per 10 ms, and its digit."""
    wav, digit = item
    samples = torch.frombuffer(bytearray(wav[44:]), dtype=torch.float32)
    spectrum = torch.stft(
        samples, WINDOW, HOP, window=_HANN, pad_mode="constant", return_complex=True
    )
    frames = torch.log(spectrum.abs().square().T @ _MEL + 1e-6)
    return (frames - frames.mean()) / (frames.std() + 1e-3), int(digit)


def collate(items: list[Item]) -> Batch:
    """A batch, padded to the longest item."""
    lengths = torch.tensor([len(frames) for frames, _ in items])
    frames = pad_sequence([frames for frames, _ in items], batch_first=True)
    return frames, lengths, torch.tensor([digit for _, digit in items])


class Files(torch.utils.data.Dataset[Item]):
    """The training set as local files, for PyTorch's own loader."""

    def __init__(self, directory: Path) -> None:
        rows = [row.split(",") for row in (directory / "columns.csv").read_text().split()[1:]]
        self.seconds = [float(seconds) for _, _, seconds in rows]
        self._files = [(directory / "train" / key, int(digit)) for key, digit, _ in rows]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, item: int) -> Item:
        path, digit = self._files[item]
        return decode((path.read_bytes(), digit))


class LikeLengths(torch.utils.data.Sampler[list[int]]):
    """Batches of similar length, in the usual way: a full shuffle is cut into pools of 20 batches.
    Each pool is sorted by length and cut into batches, which are yielded in random order.
    """

    POOL = 20

    def __init__(self, lengths: list[float], batch: int, generator: torch.Generator) -> None:
        self._lengths, self._batch, self._generator = lengths, batch, generator

    def __len__(self) -> int:
        return -(-len(self._lengths) // self._batch)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(len(self._lengths), generator=self._generator).tolist()
        pool, batches = self.POOL * self._batch, list[list[int]]()
        for start in range(0, len(order), pool):
            items = sorted(order[start : start + pool], key=self._lengths.__getitem__)
            batches += [items[at : at + self._batch] for at in range(0, len(items), self._batch)]
        for at in torch.randperm(len(batches), generator=self._generator).tolist():
            yield batches[at]


def test_set(directory: Path) -> list[Batch]:
    """The test set, in batches."""
    paths = sorted((directory / "test").iterdir(), key=lambda path: path.stat().st_size)
    items = [decode((path.read_bytes(), int(path.name[0]))) for path in paths]
    return [collate(items[at : at + 100]) for at in range(0, len(items), 100)]


class Network(nn.Module):
    """A recurrent layer, the mean of its outputs without padding, and a linear layer."""

    HIDDEN = 20

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(BANDS, self.HIDDEN, batch_first=True)
        self.out = nn.Linear(self.HIDDEN, 10)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        outputs, _ = self.recurrent(frames)
        is_frame = torch.arange(frames.shape[1])[None, :] < lengths[:, None]
        mean = (outputs * is_frame[:, :, None]).sum(1) / lengths[:, None]
        logits: Tensor = self.out(mean)
        return logits
