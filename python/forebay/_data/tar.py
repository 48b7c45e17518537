"""``forebay.tar_sample``: the files of an item of a digest with ``--layout tar``."""

from __future__ import annotations

import io
import tarfile
from typing import Any

_BLOCK = 512
#: Type flags of a plain file in a header: ``0``, or NUL in old archives.
_PLAIN = (b"0", b"\0")


def tar_sample(item: bytes | memoryview) -> dict[str, Any]:
    """Split a sample of a tar archive into its files.

    Parameters
    ----------
    item
        An item of a dataset whose digest was built with ``--layout tar``.

    Returns
    -------
    dict
        The bytes of each file by its extension. ``__key__`` is the path before the extension, a
        ``str`` as in WebDataset.

    Examples
    --------
    >>> import io, tarfile
    >>> archive = io.BytesIO()
    >>> with tarfile.open(fileobj=archive, mode="w") as tar:
    ...     member = tarfile.TarInfo("train/0007.cls")
    ...     member.size = 1
    ...     tar.addfile(member, io.BytesIO(b"3"))
    >>> tar_sample(archive.getvalue())
    {'__key__': 'train/0007', 'cls': b'3'}
    """
    item = bytes(item)  # it may be a view
    sample: dict[str, Any] = {}
    at = 0
    while at + _BLOCK <= len(item) and item[at] != 0:
        header = item[at : at + _BLOCK]
        size_field = header[124:136].rstrip(b" \0")
        if header[156:157] not in _PLAIN or header[345] != 0 or not size_field.isdigit():
            # Long names, links and very large files are rare: the standard library handles them.
            return _with_tarfile(item)
        start, size = at + _BLOCK, int(size_field, 8)
        _add(sample, header[:100].split(b"\0", 1)[0].decode(), item[start : start + size])
        at = start + -(-size // _BLOCK) * _BLOCK
    return sample


def _with_tarfile(item: bytes) -> dict[str, Any]:
    sample: dict[str, Any] = {}
    with tarfile.open(fileobj=io.BytesIO(item), mode="r:") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                _add(sample, member.name, content.read())
    return sample


def _add(sample: dict[str, Any], name: str, content: bytes) -> None:
    directory, slash, last = name.rpartition("/")
    stem, dot, extension = last.partition(".")
    if stem and dot and not last.startswith("__"):
        sample.setdefault("__key__", f"{directory}{slash}{stem}")
        sample[extension] = content
