"""The node of this machine: found, or started and left running for other jobs."""

from __future__ import annotations

import os
from pathlib import Path

from forebay._native import ForebayError
from forebay._runtime.private_files import ensure_private_directory
from forebay._runtime.processes import answers, locked, start
from forebay._runtime.warnings import warn

#: A node that was started for a job exits after this time without a connection.
IDLE_EXIT = "10min"


def default_socket() -> Path:
    """The socket of this user's node, by the rule of ``forebay serve``."""
    from_environment = os.environ.get("FOREBAY_SOCKET")
    if from_environment:
        return Path(from_environment)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "forebay" / "node.sock"
    return Path(f"/tmp/forebay-{os.geteuid()}/node.sock")


def endpoint(cache: str | os.PathLike[str] | None) -> Path | str | None:
    """The endpoint of a node: the path of a socket, or a URL."""
    if cache is None:
        return None
    text = os.fspath(cache)
    return text if "://" in text else Path(text).absolute()


def ensure_node(path: Path, namespace_key: Path | None = None) -> None:
    """Start a node at ``path`` unless one answers there; warn if it cannot be started."""
    if answers(path):
        return
    try:
        ensure_private_directory(path.parent)
        # A lock file of its own: the node holds its own lock until it exits.
        with locked(path.with_name(path.name + ".start")):
            if not answers(path):
                _start(path, namespace_key)
    except (OSError, ForebayError) as problem:
        warn_without_node(path, str(problem))


def warn_without_node(node: Path | str, problem: str) -> None:
    """Warn that the job goes on without a node."""
    warn(f"no forebay node at `{node}` ({problem}): reading the origin directly")


def _start(path: Path, namespace_key: Path | None) -> None:
    arguments = ["serve", "--socket", str(path), "--idle-exit", IDLE_EXIT]
    if namespace_key is not None:
        arguments += ["--namespace-key", str(namespace_key)]
    start(arguments, path.with_name(path.name + ".log"))
