"""The origin of all loaders: ``forebay dev origin`` over one directory, shaped or not."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: The bucket of all formats, each under its own prefix.
BUCKET = "bucket"
#: A store in another region, behind a dedicated link.
SHAPE = ("--latency", "20ms", "--bandwidth", "200MB/s")
#: An origin that has sent nothing for this time is idle.
QUIET_SECONDS = 0.1
#: Longest wait for an idle origin.
QUIET_SECONDS_MAX = 10.0


@dataclass(frozen=True)
class Origin:
    """Endpoint and credentials of an origin."""

    endpoint: str
    access_key: str
    secret_key: str

    def environment(self) -> dict[str, str]:
        """Environment variables by which the loaders find the origin."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "S3_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def sent(self) -> int:
        """Bytes of objects sent since the last reset."""
        with urllib.request.urlopen(f"{self.endpoint}/-/counters") as answer:
            counted: int = json.load(answer)["bytes_sent"]
        return counted

    def reset(self) -> None:
        """Set the counters to 0."""
        request = urllib.request.Request(f"{self.endpoint}/-/counters/reset", method="POST")
        urllib.request.urlopen(request).close()

    def sent_when_idle(self) -> int:
        """Bytes sent once the origin is idle: some loaders fetch on after the last batch."""
        deadline, sent = time.monotonic() + QUIET_SECONDS_MAX, self.sent()
        while time.monotonic() < deadline:
            time.sleep(QUIET_SECONDS)
            before, sent = sent, self.sent()
            if sent == before:
                break
        return sent


@contextmanager
def serving(root: Path, *shape: str) -> Iterator[Origin]:
    """Run an origin over a directory of buckets."""
    from forebay._runtime.processes import binary  # not in the environments of peers

    command = [binary(), "dev", "origin", "--root", str(root), *shape]
    environment = {**os.environ, "FOREBAY_LOG": "warn"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield Origin(ready["endpoint"], ready["access_key"], ready["secret_key"])
        finally:
            process.terminate()
