"""The store that everybody reads from: ``forebay dev origin`` over one directory, shaped or not."""

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

#: The bucket that all formats lie in, each under a prefix of its own.
BUCKET = "bucket"
#: A store a region away, behind a link of its own.
SHAPE = ("--latency", "20ms", "--bandwidth", "200MB/s")
#: An origin that has sent nothing for so long is done with the last epoch.
QUIET_SECONDS = 0.1
#: Whoever goes on for longer than this is not waited for.
QUIET_SECONDS_MAX = 10.0


@dataclass(frozen=True)
class Origin:
    """How to reach it."""

    endpoint: str
    access_key: str
    secret_key: str

    def environment(self) -> dict[str, str]:
        """What loaders find it by, each in its own way."""
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
        """Bytes of objects that were sent so far."""
        with urllib.request.urlopen(f"{self.endpoint}/-/counters") as answer:
            counted: int = json.load(answer)["bytes_sent"]
        return counted

    def reset(self) -> None:
        """Count from nought."""
        request = urllib.request.Request(f"{self.endpoint}/-/counters/reset", method="POST")
        urllib.request.urlopen(request).close()

    def sent_in_the_end(self) -> int:
        """Bytes sent once it is quiet: some loaders go on fetching after the last batch."""
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
    from forebay._processes import binary  # not for peers, who import this module, too

    command = [binary(), "dev", "origin", "--root", str(root), *shape]
    environment = {**os.environ, "FOREBAY_LOG": "warn"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            yield Origin(told["endpoint"], told["access_key"], told["secret_key"])
        finally:
            process.terminate()
