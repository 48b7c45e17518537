"""Automatic digests: built on first use of a URL, kept, and compared with the origin when reused.

Digests are kept in the user's cache directory, named by a hash of the URL, layout, namespace key
and endpoint. A reused digest is compared with a listing of the origin, which costs one request per
thousand objects.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from forebay._native import Digest, DigestError
from forebay._runtime.node import ensure_node
from forebay._runtime.processes import binary, locked
from forebay._runtime.storage_options import arguments, environment
from forebay._runtime.urls import check_url
from forebay._runtime.warnings import printable, warn

#: Layouts that have no parameters. The others need ``forebay digest build``.
LAYOUTS = ("files", "pack", "tar")

#: Names of objects that are looked at for archives.
NAMES_CHECKED_MAX = 1000
#: Blobs above which the origin is not listed: that would delay every start.
LISTED_MAX = 200_000
#: Timeout of the listing. An origin that does not answer is not an error.
LISTING_SECONDS = 60.0
#: Environment variables with the S3 endpoint, by precedence.
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
#: Deadline of one request of the listing, retries included, if ``storage_options`` has none.
DEADLINE_SECONDS = 10


def digest_for(
    url: str,
    *,
    layout: str,
    namespace_key: Path | None,
    options: Mapping[str, object],
    rebuild: bool,
    node: Path | str | None,
    start_node: bool,
) -> Path:
    """The path of a URL's digest, which is built if it is missing.

    What a build reads goes to the node, too, so that the first epoch does not read it again. Warns
    if the origin has changed since the last build.
    """
    if layout not in LAYOUTS:
        names = ", ".join(map(repr, LAYOUTS))
        raise ValueError(
            f"there is no layout {layout!r} for a URL; give one of {names}, or a digest made with"
            " `forebay digest build`"
        )
    check_url(url)
    url = _canonical(url)
    path = _path(url, layout, namespace_key, options)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock")):
        if rebuild or not path.is_file():
            if start_node and isinstance(node, Path):
                ensure_node(node, namespace_key)
            _build(url, path, layout, namespace_key, options, restart=rebuild, node=node)
            if layout == "files":
                _check_objects(url, path)
            return path
    changes = _changes(path, options)
    if changes is not None:
        warn(
            f"`{url}` has changed since its digest was built ({changes}); changed objects cannot be"
            " read: give rebuild=True to read them and build the digest again"
        )
    return path


def cache_directory() -> Path:
    """The directory of this user's digests and catalogues."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "forebay"


def _canonical(url: str) -> str:
    """The URL without a trailing slash; a directory by its absolute path."""
    if "://" not in url:
        return str(Path(url).absolute())
    trimmed = url.rstrip("/")
    return trimmed if "://" in trimmed else url


def _endpoint(url: str, options: Mapping[str, object]) -> object:
    """The endpoint of the origin: two servers may have buckets of the same name."""
    named = options.get("endpoint")
    if named or not url.startswith("s3:"):
        return named
    return next(filter(None, map(os.environ.get, ENDPOINTS)), None)


def _path(url: str, layout: str, namespace_key: Path | None, options: Mapping[str, object]) -> Path:
    key = None if namespace_key is None else str(namespace_key.absolute())
    identity = json.dumps([url, layout, key, _endpoint(url, options)])
    name = hashlib.sha256(identity.encode()).hexdigest()[:32]
    return cache_directory() / "digests" / f"{name}.digest"


def _build(
    url: str,
    path: Path,
    layout: str,
    namespace_key: Path | None,
    options: Mapping[str, object],
    *,
    restart: bool,
    node: Path | str | None,
) -> None:
    print(printable(f"forebay: building a digest of {url}, once"), file=sys.stderr)
    command = [binary(), "digest", "build", url, "-o", str(path), "--layout", layout]
    command += ["--format", "json", *arguments(options)]
    if namespace_key is not None:
        command += ["--namespace-key", str(namespace_key)]
    if node is not None:
        command += ["--node", str(node)]
    if restart:
        command.append("--restart")
    if path.is_file() and _is_readable(path):
        # Only what has changed is read.
        command += ["--from", str(path)]
    # On a terminal, its progress bar and errors are shown; the last error is ours as well.
    built = subprocess.run(
        command,
        env=environment(options),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if sys.stderr.isatty() else subprocess.PIPE,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        lines = (built.stderr or "").strip().splitlines()
        reason = lines[-1].removeprefix("error: ") if lines else "see above"
        raise DigestError(printable(f"cannot build a digest of `{url}`: {reason}"))


def _is_readable(path: Path) -> bool:
    """Whether this version can open the digest."""
    try:
        Digest(path)
    except DigestError:
        return False
    return True


def _check_objects(url: str, path: Path) -> None:
    """Refuse a URL of one object, and point out objects that are archives of items."""
    digest = Digest(path)
    names = [digest.object(item) for item in range(min(len(digest), NAMES_CHECKED_MAX))]
    if len(digest) == 1 and url.endswith(f"/{names[0]}"):
        path.unlink()
        parent = url.removesuffix(f"/{names[0]}")
        raise DigestError(
            printable(
                f"`{url}` is one object; give the prefix of the objects, such as `{parent}`; or"
                " layout='tar' if it is an archive"
            )
        )
    archives = sum(name.endswith(".tar") for name in names)
    if archives > len(names) / 2:
        warn(
            f"{archives} of {len(names)} objects are tar archives, and each is one item; give"
            " layout='tar' for their samples"
        )


def _changes(path: Path, options: Mapping[str, object]) -> str | None:
    """Counts of changed, removed and added objects; ``None`` if there are none, or no listing."""
    if Digest(path).blobs > LISTED_MAX:
        return None
    command = [binary(), "digest", "verify", str(path), "--listing", "--format", "json"]
    try:
        verified = subprocess.run(
            [*command, *arguments({"deadline_seconds": DEADLINE_SECONDS, **options})],
            env=environment(options),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LISTING_SECONDS,
            check=False,
        )
        report = json.loads(verified.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    keys = {"changed": "changed", "vanished": "removed", "added": "added"}
    counts = [(len(report.get(key, ())), change) for key, change in keys.items()]
    return ", ".join(f"{count} {change}" for count, change in counts if count) or None
