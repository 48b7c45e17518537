"""Samples of tar archives: what an item of a digest with ``--layout tar`` holds."""

from __future__ import annotations

import io
import tarfile

_BLOCK = 512
#: What a plain file is called in a header: ``0``, or nothing in old archives.
_PLAIN = (b"0", b"\0")


def tar_sample(item: bytes) -> dict[str, bytes]:
    """Take a sample apart.

    Parameters
    ----------
    item
        An item of a dataset whose digest was built with ``--layout tar``.

    Returns
    -------
    dict
        The content of each file by its ending; ``__key__`` is the path up to it, as in WebDataset.

    Examples
    --------
    >>> import io, tarfile
    >>> archive = io.BytesIO()
    >>> with tarfile.open(fileobj=archive, mode="w") as tar:
    ...     member = tarfile.TarInfo("train/0007.cls")
    ...     member.size = 1
    ...     tar.addfile(member, io.BytesIO(b"3"))
    >>> tar_sample(archive.getvalue())
    {'__key__': b'train/0007', 'cls': b'3'}
    """
    sample: dict[str, bytes] = {}
    at = 0
    while at + _BLOCK <= len(item) and item[at] != 0:
        header = item[at : at + _BLOCK]
        size_field = header[124:136].rstrip(b" \0")
        if header[156:157] not in _PLAIN or header[345] != 0 or not size_field.isdigit():
            # Long names, links, very large files: rare, and for those who know all of it.
            return _with_tarfile(item)
        start, size = at + _BLOCK, int(size_field, 8)
        _add(sample, header[:100].split(b"\0", 1)[0].decode(), item[start : start + size])
        at = start + -(-size // _BLOCK) * _BLOCK
    return sample


def _with_tarfile(item: bytes) -> dict[str, bytes]:
    sample: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(item), mode="r:") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                _add(sample, member.name, content.read())
    return sample


def _add(sample: dict[str, bytes], name: str, content: bytes) -> None:
    directory, slash, last = name.rpartition("/")
    stem, dot, ending = last.partition(".")
    if stem and dot and not last.startswith("__"):
        sample.setdefault("__key__", f"{directory}{slash}{stem}".encode())
        sample[ending] = content
