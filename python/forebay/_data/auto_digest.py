"""Automatic digests: made on first use of a URL, kept, and brought up to date when reused.

Digests are kept in the user's cache directory, named by a hash of the URL, layout, namespace key
and endpoint. Each use lists the origin, which costs one request per thousand objects. With a node
and whole objects as items, that is all that is needed to start: addresses are learned in the first
epoch (``learning``). In other cases the digest is built first. Either way, only objects that are
new or have changed are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class FoundDigest:
    """The digest of a URL, or the listing from which it is learned."""

    #: Where the digest is, or will be.
    path: Path
    #: The listing, until the digest is complete.
    listing: Path | None = None
    #: Dataset id of the listing. States of an epoch have it before and after.
    identity: str | None = None


def digest_for(
    url: str,
    *,
    layout: str,
    namespace_key: Path | None,
    options: Mapping[str, object],
    rebuild: bool,
    node: Path | str | None,
    start_node: bool,
    may_learn: bool = True,
) -> FoundDigest:
    """The digest of a URL; if there is none yet, a listing, or else the digest is built.

    What a build reads goes to the node, too, so that the first epoch does not read it again.
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
        is_remote = "://" in url and not url.startswith("file:")
        learns = may_learn and is_remote and node is not None and layout == "files"
        if learns and not rebuild:
            found = _listed(url, path, namespace_key, options)
            if found is not None:
                return found
        is_present = path.is_file() and not rebuild
        changes = _changes(path, options) if is_present else None
        if is_present and changes is None:
            return FoundDigest(path)
        if start_node and isinstance(node, Path):
            ensure_node(node, namespace_key)
        if changes is None:
            _say(f"building a digest of {url}, once")
        else:
            _say(f"{url} has changed ({changes}): reading what has changed")
        _build(url, path, layout, namespace_key, options, restart=rebuild, node=node)
        if layout == "files":
            _check_objects(url, path)
        return FoundDigest(path, None, _listing_id(path, namespace_key) if learns else None)


def _listed(
    url: str, path: Path, namespace_key: Path | None, options: Mapping[str, object]
) -> FoundDigest | None:
    """The listing of a URL, or the digest that was made from the same listing.

    ``None`` if objects have no versions, so that a change would go unnoticed: a digest is built
    then. An origin that does not answer is not an error if it was listed before.
    """
    listing = path.with_suffix(".listing")
    earlier = next(filter(Path.is_file, (listing, path)), None)
    if path.is_file() and _is_readable(path) and Digest(path).blobs > LISTED_MAX:
        identity = Digest(path).listing_id(namespace_key)
        return None if identity is None else FoundDigest(path, None, identity)
    command = [binary(), "digest", "list", url, "-o", str(listing), "--format", "json"]
    if namespace_key is not None:
        command += ["--namespace-key", str(namespace_key)]
    if earlier is not None:
        command += ["--from", str(earlier)]
        options = {"deadline_seconds": DEADLINE_SECONDS, **options}
    try:
        listed = subprocess.run(
            [*command, *arguments(options)],
            env=environment(options),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LISTING_SECONDS if earlier is not None else None,
            check=False,
        )
        code, error = listed.returncode, listed.stderr
    except subprocess.TimeoutExpired:
        code, error = 2, "the origin does not answer"
    if code == 0 and earlier is None:
        _check_objects(url, listing)
        count = len(Digest(listing, True))
        _say(f"listed {count} objects of {url}; the first epoch reads and hashes them")
    elif earlier is None and code > 1:
        lines = error.strip().splitlines()
        reason = lines[-1].removeprefix("error: ") if lines else "no reason given"
        raise DigestError(printable(f"cannot list `{url}`: {reason}"))
    if code == 1 or not listing.is_file():
        return None
    identity = Digest(listing, True).dataset
    is_complete = path.is_file() and _listing_id(path, namespace_key) == identity
    return FoundDigest(path, None if is_complete else listing, identity)


def _listing_id(path: Path, namespace_key: Path | None) -> str | None:
    """The id of the listing that a digest was made from, if it is readable and was."""
    try:
        return Digest(path).listing_id(namespace_key)
    except DigestError:
        return None


def _say(text: str) -> None:
    print(printable(f"forebay: {text}"), file=sys.stderr)


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
    digest = Digest(path, True)
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
