"""Warnings that point at the user's own line, from any depth of forebay."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

#: The directory of the package.
_PACKAGE = str(Path(__file__).parents[1])


def warn(message: str) -> None:
    """Issue a ``RuntimeWarning`` for the first caller outside of forebay."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)
