"""A Python environment for each peer, under ``target/``, on top of the current one.

Peers pin dependencies to conflicting versions, so each has its own environment. PyTorch (5 GB) is
shared through a path file. Requirements are complete, so that nothing is resolved here, and ``uv``
and ``pip`` install the same.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from loaders.peers import Peer

_REQUIREMENTS = Path(__file__).parent / "requirements"


class Unavailable(Exception):
    """A peer cannot be installed or does not work. The message is the reason."""


def python_of(peer: Peer, target: Path) -> Path:
    """The interpreter of a peer's environment, which is created if necessary."""
    if peer.requirements is None:
        return Path(sys.executable)
    requirements = _REQUIREMENTS / f"{peer.requirements}.txt"
    environment = target / "loaders" / peer.requirements
    shared, stamp = sysconfig.get_path("purelib"), environment / "installed.txt"
    wanted = f"{shared}\n{requirements.read_text()}"
    if not (stamp.exists() and stamp.read_text() == wanted):
        _install(environment, requirements, shared)
        stamp.write_text(wanted)
    return environment / "bin" / "python"


def _install(environment: Path, requirements: Path, shared: str) -> None:
    python, wanted = str(environment / "bin" / "python"), ["--no-deps", "-r", str(requirements)]
    shutil.rmtree(environment, ignore_errors=True)
    if shutil.which("uv"):
        _run(["uv", "venv", "--quiet", "--python", sys.executable, str(environment)])
        _run(["uv", "pip", "install", "--quiet", "--python", python, *wanted])
    else:
        _run([sys.executable, "-m", "venv", str(environment)])
        _run([python, "-m", "pip", "install", "--quiet", *wanted])
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text(f"{shared}\n")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise Unavailable(f"`{' '.join(command[:3])}` failed: {lines[-1]}")
