"""An origin that accepts a request and does not finish its answer."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from harness import CONTENTS, World

import forebay

#: The object whose first answer hangs.
HUNG = "/bucket/train/00042.bin"


class Proxy(ThreadingHTTPServer):
    """Passes requests to an origin; the first answer for ``HUNG`` stops after some bytes."""

    daemon_threads = True

    def __init__(self, origin: str, sent: int | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.origin, self.sent = urlsplit(origin).netloc, sent
        self.hung = 0
        self.is_over = threading.Event()

    def handle_error(self, *_: Any) -> None:
        """A client that gives up is expected."""


class Handler(BaseHTTPRequestHandler):
    """One connection of the proxy."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_GET(self) -> None:
        hangs = urlsplit(self.path).path == HUNG and not self.server.hung
        if hangs:
            self.server.hung += 1
            if self.server.sent is None:
                self.server.is_over.wait()
                return
        upstream = http.client.HTTPConnection(self.server.origin, timeout=60)
        upstream.putrequest("GET", self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            upstream.putheader(name, value)
        upstream.endheaders()
        answer = upstream.getresponse()
        body = answer.read()
        upstream.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("date", "server", "transfer-encoding"):
                self.send_header(name, value)
        self.end_headers()
        if hangs:
            self.wfile.write(body[: self.server.sent])
            self.wfile.flush()
            self.server.is_over.wait()
            return
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def proxied(world: World, sent: int | None) -> Iterator[tuple[World, Proxy]]:
    """The same dataset behind a proxy."""
    proxy = Proxy(world.endpoint, sent)
    serving = threading.Thread(target=proxy.serve_forever, daemon=True)
    serving.start()
    endpoint = f"http://127.0.0.1:{proxy.server_address[1]}"
    try:
        options = {**world.options, "endpoint": endpoint}
        yield replace(world, endpoint=endpoint, options=options), proxy
    finally:
        proxy.is_over.set()
        proxy.shutdown()
        proxy.server_close()
        serving.join()


# Promise 5. One hung answer once held a job for 60 s and then failed it.
@pytest.mark.parametrize("sent", [None, 0, 10], ids=["nothing", "head", "ten-bytes"])
def test_a_hung_answer_delays_a_job_by_seconds_and_fails_nothing(
    world: World, sent: int | None
) -> None:
    with proxied(world, sent) as (slow, proxy):
        loader = forebay.DataLoader(
            slow.dataset(cache=None), batch_size=16, shuffle=True, collate_fn=list
        )
        seen, longest, began = list[bytes](), 0.0, time.monotonic()
        for batch in loader:
            longest = max(longest, time.monotonic() - began)
            seen += batch
            began = time.monotonic()
        assert proxy.hung == 1, "the answer did not hang"
        assert sorted(seen) == sorted(CONTENTS)
        print(f"longest wait for a batch: {longest:.1f} s")
        # At most ten seconds on an idle machine; the deadline of the origin is sixty.
        assert longest < 30, f"a batch took {longest:.1f} s"
