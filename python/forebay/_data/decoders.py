"""Decoders by name: from the bytes of an item to an image or a waveform.

They run where the transform runs, in the loader's workers, and import their library on first use.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

#: What ``decode=`` takes beside a function.
DecoderName = Literal["pil", "torchvision", "audio"]


def decoder(decode: DecoderName | Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """The function of a decoder; its library must be installed."""
    if decode is None or callable(decode):
        return decode
    if decode not in _DECODERS:
        names = ", ".join(map(repr, _DECODERS))
        raise ValueError(f"there is no decoder {decode!r}; give one of {names}, or a function")
    module, package, function = _DECODERS[decode]
    try:
        import_module(module)
    except ImportError:
        raise ImportError(
            f"decode={decode!r} needs {package}; install it with `pip install {package}`"
        ) from None
    return function


def decode_pil(content: bytes | memoryview) -> Any:
    """An RGB image of Pillow's."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return image.convert("RGB")


def decode_torchvision(content: bytes | memoryview) -> Any:
    """An RGB image as a ``uint8`` tensor of channels, rows and columns."""
    import torch
    from torchvision.io import ImageReadMode, decode_image

    return decode_image(torch.frombuffer(bytearray(content), dtype=torch.uint8), ImageReadMode.RGB)


def decode_audio(content: bytes | memoryview) -> Any:
    """A ``float32`` array of channels and frames, and the sample rate."""
    import soundfile

    frames, rate = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
    return frames.T, rate


#: The module, the package and the function of each decoder.
_DECODERS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "pil": ("PIL", "pillow", decode_pil),
    "torchvision": ("torchvision", "torchvision", decode_torchvision),
    "audio": ("soundfile", "soundfile", decode_audio),
}
