"""A hostile node: passes frames on to a real node, and flips a bit of every range that it returns.

Run as a script with the address of the real node; prints its own port.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading

GET_REPLY = 0x86


def read(source: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes; raises ``ConnectionError`` at the end."""
    data = bytearray()
    while len(data) < size:
        part = source.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionError
        data += part
    return bytes(data)


def forward(source: socket.socket, sink: socket.socket) -> None:
    """Pass frames on until a side closes."""
    with contextlib.suppress(OSError):
        while True:
            header = read(source, 16)
            length, kind = struct.unpack_from("<IB", header)
            body = bytearray(read(source, length))
            if kind == GET_REPLY and len(body) > 5:
                body[5 + (len(body) - 5) // 2] ^= 1
            sink.sendall(header + body)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def main() -> None:
    host, port = sys.argv[1].rsplit(":", 1)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        node = socket.create_connection((host, int(port)))
        for ends in ((client, node), (node, client)):
            threading.Thread(target=forward, args=ends, daemon=True).start()


if __name__ == "__main__":
    main()
