"""This machine's node: found, or started and left running for others."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from forebay._native import ForebayError
from forebay._processes import answers, locked, start
from forebay._warnings import warn

#: A node that was started for a job leaves when nobody has used it for so long.
IDLE_EXIT = "10min"


def default_socket() -> Path:
    """Where this user's node listens; the rule of ``forebay serve``."""
    named = os.environ.get("FOREBAY_SOCKET")
    if named:
        return Path(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "forebay" / "node.sock"
    return Path(f"/tmp/forebay-{os.geteuid()}/node.sock")


def endpoint(cache: str | os.PathLike[str] | None) -> Path | str | None:
    """Where a node listens: a socket, or what a URL names."""
    if cache is None:
        return None
    text = os.fspath(cache)
    return text if "://" in text else Path(text).absolute()


def ensure_node(path: Path, namespace_key: Path | None = None) -> None:
    """See to it that a node listens at ``path``; if that cannot be, warn and go on without."""
    if answers(path):
        return
    try:
        _private_directory(path.parent)
        # Not the node's own lock, which it holds for as long as it lives.
        with locked(path.with_name(path.name + ".start")):
            if not answers(path):
                _start(path, namespace_key)
    except (OSError, ForebayError) as problem:
        warn_without(path, str(problem))


def warn_without(node: Path | str, problem: str) -> None:
    """Say that the origin will be read directly."""
    message = f"no forebay node at `{node}` ({problem}): reading the origin directly"
    warn(message)


def _start(path: Path, namespace_key: Path | None) -> None:
    arguments = ["serve", "--socket", str(path), "--idle-exit", IDLE_EXIT]
    if namespace_key is not None:
        arguments += ["--namespace-key", str(namespace_key)]
    start(arguments, path.with_name(path.name + ".log"))


def _private_directory(directory: Path) -> None:
    """Make the socket's directory, or see that nobody else can write there."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ForebayError(
            f"others may write to `{directory}`; set FOREBAY_SOCKET to another place"
        )
