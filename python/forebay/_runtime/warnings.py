"""Warnings that point at the user's own line, from any depth of forebay."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

#: The directory of the package.
_PACKAGE = str(Path(__file__).parents[1])


def printable(text: str) -> str:
    """The text with the characters escaped that control a terminal, as the binary prints it.

    Names and messages come from other users and servers.
    """
    return "".join(
        char if char.isprintable() or char == "\n" else f"\\u{{{ord(char):x}}}" for char in text
    )


def warn(message: str) -> None:
    """Issue a ``RuntimeWarning`` for the first caller outside of forebay."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(message), RuntimeWarning, stacklevel=level)
