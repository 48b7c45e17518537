"""URLs that a user gives: checked for secrets before they are printed, stored or passed on.

Other users can read a process's arguments, and logs outlive a job. The rules are those of the
binary, which checks the URLs again.
"""

from __future__ import annotations

from forebay._native import ForebayError
from forebay._runtime.warnings import printable

#: Parameters of a query that sign a URL.
_SIGNATURES = ("sig=", "signature=", "token=")


def check_url(url: str) -> None:
    """Raise ``ForebayError``, which does not quote the secret, for a URL that may contain one."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return
    authority = rest.split("/", 1)[0]
    query = rest.partition("?")[2].lower()
    if "@" in authority:
        hidden, problem = "…", "it has credentials in it"
    elif scheme.lower() in ("http", "https") and ("?" in rest or "#" in rest):
        hidden, problem = f"{_host(authority)}/…", "it has a query or fragment, maybe a secret"
    elif any(name in query for name in _SIGNATURES):
        hidden, problem = f"{_host(authority)}/…", "it has a signature in it"
    else:
        return
    raise ForebayError(
        f"`{printable(scheme)}://{printable(hidden)}` cannot be used: {problem}; give a URL without"
        " it, and credentials by the environment or `storage_options`"
    )


def _host(authority: str) -> str:
    """The host, without a query that follows it at once."""
    return authority.split("?", 1)[0].split("#", 1)[0]
