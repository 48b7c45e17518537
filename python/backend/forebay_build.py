"""PEP 517 build backend: maturin's hooks, with the ``forebay`` binary in the wheel.

The loader starts nodes and agents, so the wheel needs the binary. With ``FOREBAY_PREBUILT=path``
that binary is used instead of building one.
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

# The settings of PEP 517, which are passed on to maturin unchanged.
_Settings = dict[str, str | list[str]] | None


def build_wheel(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    _bundle_binary()
    name: str = maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name


def build_editable(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    _bundle_binary()
    name: str = maturin.build_editable(wheel_directory, config_settings, metadata_directory)
    return name


def _bundle_binary() -> None:
    """Copy the binary into the package."""
    path = _ROOT / "python" / "forebay" / "_bin" / "forebay"
    path.parent.mkdir(exist_ok=True)
    # By rename: the old binary may be running.
    new = path.with_suffix(".new")
    shutil.copy2(os.environ.get("FOREBAY_PREBUILT") or _build(), new)
    # Debug information of the release profile is most of its size.
    if shutil.which("strip"):
        subprocess.run(["strip", str(new)], check=False)
    new.replace(path)


def _build() -> Path:
    """Build the binary; returns its path."""
    command = ["cargo", "build", "--release", "--package", "forebay-cli"]
    subprocess.run(command, cwd=_ROOT, check=True)
    command = ["cargo", "metadata", "--format-version=1", "--no-deps"]
    metadata = subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.PIPE).stdout
    return Path(json.loads(metadata)["target_directory"]) / "release" / "forebay"
