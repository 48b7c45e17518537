"""Digests that nobody has built yet: made on first use, kept, and looked at again on the next.

They lie in the user's cache directory, by URL and by what else they depend on. Whether the origin
is still as it was is seen from its listing, which costs a request for every thousand objects.
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
from forebay._processes import binary, locked
from forebay._warnings import warn

#: Layouts that need nothing but their name; what else there is, a digest is built for by hand.
LAYOUTS = ("files", "pack", "tar")

#: Listing more objects than this takes too long for every start.
LISTED_MAX = 200_000
#: An origin that has not listed them by then is slow or gone, and no reason to wait.
LISTING_SECONDS = 60.0
#: Where the environment says which server S3 is, the first that does.
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
#: How long one of its answers may take, with all retries, unless the user says otherwise.
DEADLINE_SECONDS = 10


def digest_for(
    url: str,
    *,
    layout: str,
    namespace_key: Path | None,
    options: Mapping[str, object],
    rebuild: bool,
) -> Path:
    """The digest of a URL: the one that was built before, if the origin is as it was then."""
    if layout not in LAYOUTS:
        there_are = ", ".join(map(repr, LAYOUTS))
        raise ValueError(
            f"there is no layout {layout!r} for a URL; there are {there_are}, and more with"
            " `forebay digest build`, whose digest is given instead of the URL"
        )
    url = _canonical(url)
    place = _place(url, layout, namespace_key, options)
    place.parent.mkdir(parents=True, exist_ok=True)
    with locked(place.with_suffix(".lock")):
        if rebuild or not place.is_file():
            _build(url, place, layout, namespace_key, options, restart=rebuild)
            return place
    change = _change(place, options)
    if change is not None:
        warn(
            f"`{url}` is not as it was when its digest was built ({change}); what has changed"
            " cannot be read: give rebuild=True to build it again"
        )
    return place


def cache_directory() -> Path:
    """Where this user's caches lie."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "forebay"


def _canonical(url: str) -> str:
    """One name for one place: a directory by its whole path, and no slash at the end."""
    if "://" not in url:
        return str(Path(url).absolute())
    trimmed = url.rstrip("/")
    return trimmed if "://" in trimmed else url


def _endpoint(url: str, options: Mapping[str, object]) -> object:
    """The server that is meant: two of them may have buckets of one name."""
    named = options.get("endpoint")
    if named or not url.startswith("s3:"):
        return named
    return next(filter(None, map(os.environ.get, ENDPOINTS)), None)


def _place(
    url: str, layout: str, namespace_key: Path | None, options: Mapping[str, object]
) -> Path:
    key = None if namespace_key is None else str(namespace_key.absolute())
    told = json.dumps([url, layout, key, _endpoint(url, options)])
    return (
        cache_directory() / "digests" / f"{hashlib.sha256(told.encode()).hexdigest()[:32]}.digest"
    )


def _build(
    url: str,
    place: Path,
    layout: str,
    namespace_key: Path | None,
    options: Mapping[str, object],
    *,
    restart: bool,
) -> None:
    print(f"forebay: building a digest of {url}, once", file=sys.stderr)
    command = [binary(), "digest", "build", url, "-o", str(place), "--layout", layout]
    command += ["--format", "json", *_reach(options)]
    if namespace_key is not None:
        command += ["--namespace", str(namespace_key)]
    if restart:
        command.append("--restart")
    # Its progress bar is for whoever watches; so are its errors, the last of which is ours as well.
    built = subprocess.run(
        command,
        env=_environment(options),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if sys.stderr.isatty() else subprocess.PIPE,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        lines = (built.stderr or "").strip().splitlines()
        said = lines[-1].removeprefix("error: ") if lines else "see above"
        raise DigestError(f"cannot build a digest of `{url}`: {said}")


def _change(place: Path, options: Mapping[str, object]) -> str | None:
    """What has changed at the origin since; nothing if that cannot be seen now."""
    if Digest(place).blobs > LISTED_MAX:
        return None
    command = [binary(), "digest", "verify", str(place), "--listing", "--format", "json"]
    try:
        looked = subprocess.run(
            [*command, *_reach({"deadline_seconds": DEADLINE_SECONDS, **options})],
            env=_environment(options),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LISTING_SECONDS,
            check=False,
        )
        report = json.loads(looked.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    counts = {what: len(report.get(what, ())) for what in ("changed", "vanished", "added")}
    told = [f"{count} {what}" for what, count in counts.items() if count]
    return ", ".join(told) or None


def _reach(options: Mapping[str, object]) -> list[str]:
    arguments = []
    if options.get("endpoint"):
        arguments += ["--endpoint", str(options["endpoint"])]
    if options.get("anonymous"):
        arguments.append("--anonymous")
    if options.get("deadline_seconds"):
        arguments += ["--deadline", f"{options['deadline_seconds']}s"]
    return arguments


def _environment(options: Mapping[str, object]) -> dict[str, str]:
    """Credentials go by the environment: anyone can read arguments."""
    environment = dict(os.environ)
    names = {"access_key": "AWS_ACCESS_KEY_ID", "secret_key": "AWS_SECRET_ACCESS_KEY"}
    for option, name in names.items():
        if options.get(option):
            environment[name] = str(options[option])
    return environment
