"""Private files: what a process opens in directories where other users can create files.

In ``/tmp`` another user can create anything under any name: a link, a pipe without a writer, a
device that never ends. So nothing there is opened before its owner and its kind are known, a link
is never followed, no open blocks, and every read has a limit. The counterpart in Rust is
``crates/auth/src/private_file.rs``.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from forebay._native import ForebayError

#: Flags of every open: no link, no wait for the other end of a pipe, no terminal, no inheritance.
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_private(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file of this user and return its descriptor; ``O_CREAT`` creates it 0600.

    Raises ``OSError`` for anything else, without a wait.
    """
    try:
        # Before the open, because opening a device can have effects.
        _check_file(path, os.lstat(path))
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    descriptor = os.open(path, flags | _FLAGS, 0o600)
    try:
        # After the open, because the path may have been replaced in between.
        _check_file(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_private(path: Path, size_max: int) -> bytes:
    """At most the first ``size_max`` bytes of a regular file of this user."""
    with os.fdopen(open_private(path), "rb") as file:
        return file.read(size_max)


def write_private(path: Path, content: bytes) -> None:
    """Replace the content of a regular file of this user, which is created if needed."""
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content)


def is_own_directory(status: os.stat_result) -> bool:
    """Whether the result of ``lstat`` is a directory of this user, and no link."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def ensure_private_directory(directory: Path) -> None:
    """Create a directory with mode 0700; an existing one must keep other users from writing."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if not is_own_directory(status) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ForebayError(
            f"`{directory}` is a link, belongs to another user, or other users may write to it;"
            " set FOREBAY_SOCKET to a socket in a directory of your own"
        )


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise PermissionError(f"`{path}` is not a regular file; remove it")
    if status.st_uid != os.geteuid():
        raise PermissionError(f"`{path}` belongs to user {status.st_uid}; remove it")
