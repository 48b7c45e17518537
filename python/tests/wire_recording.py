"""Recorded conversations of the wire protocol (``docs/reference/wire.md``), and their replay.

``recorded/node-v1.json`` has the requests of a client and the replies of a node, each as the bytes
of the whole frame. To record one with the binary of some version:

    python wire_recording.py NODE_SOCKET PROXY_SOCKET OUT_FILE

Then run a job with ``cache=PROXY_SOCKET`` and end the recorder with Ctrl-C.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

#: Body length, kind, three zeros, id.
HEADER = struct.Struct("<IB3xQ")
#: Marks a reply of the kind of its request.
REPLY = 0x80
#: Kind of a refusal.
ERROR = 0xFF

HELLO, OPEN, PROVE, UPLOAD, PRESENCE, GET = 1, 2, 3, 4, 5, 6
RECORDING = Path(__file__).parent / "recorded" / "node-v1.json"


@dataclass
class Frame:
    """One message."""

    kind: int
    id: int
    body: bytes

    def encode(self) -> bytes:
        return HEADER.pack(len(self.body), self.kind, self.id) + self.body


def read_frame(connection: socket.socket) -> Frame | None:
    """The next frame; ``None`` at the end of the connection."""
    header = _read(connection, HEADER.size)
    if header is None:
        return None
    length, kind, number = HEADER.unpack(header)
    body = _read(connection, length)
    return None if body is None else Frame(kind, number, body)


def _read(connection: socket.socket, length: int) -> bytes | None:
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            return None
        data += more
    return data


def decode(recorded: str) -> Frame:
    data = bytes.fromhex(recorded)
    _, kind, number = HEADER.unpack_from(data)
    return Frame(kind, number, data[HEADER.size :])


def conversations(path: Path = RECORDING) -> list[list[tuple[Frame, Frame]]]:
    """Requests with their replies, of each recorded connection."""
    recorded = json.loads(path.read_text())
    return [[(decode(one), decode(two)) for one, two in pairs] for pairs in recorded]


@contextmanager
def listening(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Call ``answer`` in a thread for every connection to ``path`` until the block ends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def record(node: Path, proxy: Path, out: Path) -> None:
    """Forward connections to a node until interrupted, and record them."""
    recorded: list[list[tuple[str, str]]] = []

    def forward(client: socket.socket) -> None:
        pairs: list[tuple[str, str]] = []
        recorded.append(pairs)
        with socket.socket(socket.AF_UNIX) as server, client:
            server.connect(str(node))
            while (request := read_frame(client)) is not None:
                server.sendall(request.encode())
                reply = read_frame(server)
                if reply is None:
                    return
                client.sendall(reply.encode())
                pairs.append((request.encode().hex(), reply.encode().hex()))

    with listening(proxy, forward), suppress(KeyboardInterrupt):
        threading.Event().wait()
    out.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    record(*map(Path, sys.argv[1:]))
