"""Storage options: how a job reaches its origin."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypedDict, get_type_hints

from forebay._runtime.urls import check_url


class StorageOptions(TypedDict, total=False):
    """Access to an origin. What is not given comes from the environment."""

    #: A server in place of the cloud's own, such as ``http://127.0.0.1:9000``.
    endpoint: str
    #: The S3 region.
    region: str
    #: The AWS profile with the credentials.
    profile: str
    #: An S3 key pair.
    access_key: str
    secret_key: str
    #: The token of a temporary key pair.
    session_token: str
    #: Whether no credentials are sent.
    anonymous: bool
    #: Longest time of one request with all its retries.
    deadline_seconds: float


#: The names of all options.
OPTIONS = tuple(get_type_hints(StorageOptions))

#: Variables that say who the client is.
_IDENTITY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def check_options(options: Mapping[str, object]) -> None:
    """Raise ``ValueError`` for options that are unknown or contradict each other.

    The binary checks the values. An endpoint with a secret in it is refused here.
    """
    for option in options:
        if option not in OPTIONS:
            names = ", ".join(OPTIONS)
            raise ValueError(f"there is no storage option `{option}`; the options are {names}")
    has_keys = [options.get(name) is not None for name in ("access_key", "secret_key")]
    if any(has_keys) != all(has_keys):
        raise ValueError("`access_key` and `secret_key` go together; give both or neither")
    if options.get("session_token") is not None and not any(has_keys):
        raise ValueError("`session_token` belongs to a key pair; give access_key and secret_key")
    if options.get("profile") is not None and any(has_keys):
        raise ValueError("`profile` and `access_key` both name credentials; give one of them")
    if isinstance(endpoint := options.get("endpoint"), str):
        check_url(endpoint)


def arguments(options: Mapping[str, object]) -> list[str]:
    """Options without secrets, as arguments of ``forebay``."""
    found = []
    for option in ("endpoint", "region", "profile"):
        if options.get(option):
            found += [f"--{option}", str(options[option])]
    if options.get("anonymous"):
        found.append("--anonymous")
    if options.get("deadline_seconds"):
        found += ["--deadline", f"{options['deadline_seconds']}s"]
    return found


def environment(options: Mapping[str, object]) -> dict[str, str]:
    """Credentials as environment variables: other users can read a process's arguments."""
    variables = dict(os.environ)
    keys = [options.get(name) for name in ("access_key", "secret_key", "session_token")]
    if any(keys):
        for name, value in zip(_IDENTITY, keys, strict=True):
            variables.pop(name, None)  # a token of the environment belongs to another key
            if value:
                variables[name] = str(value)
    return variables
