"""Builds the wheel: maturin's hooks, after the ``forebay`` binary was put beside the Python files.

The loader starts nodes and agents, so a wheel without the binary would be of little use. With
``FOREBAY_PREBUILT=path`` that binary is taken instead of building one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_ROOT = Path(__file__).resolve().parents[2]

prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel

# PEP 517 passes all of these on by position or name; what maturin makes of them is its own affair.
_Settings = dict[str, str | list[str]] | None


def build_wheel(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    _place_binary()
    name: str = maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name


def build_editable(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    _place_binary()
    name: str = maturin.build_editable(wheel_directory, config_settings, metadata_directory)
    return name


def _place_binary() -> None:
    place = _ROOT / "python" / "forebay" / "_bin" / "forebay"
    place.parent.mkdir(exist_ok=True)
    # By rename: the one that is there may be running.
    new = place.with_suffix(".new")
    shutil.copy2(os.environ.get("FOREBAY_PREBUILT") or _build(), new)
    new.replace(place)


def _build() -> Path:
    command = ["cargo", "build", "--release", "--package", "forebay-cli"]
    subprocess.run(command, cwd=_ROOT, check=True)
    told = ["cargo", "metadata", "--format-version=1", "--no-deps"]
    metadata = subprocess.run(told, cwd=_ROOT, check=True, stdout=subprocess.PIPE).stdout
    return Path(json.loads(metadata)["target_directory"]) / "release" / "forebay"
