"""A node with two tenants, which hostile clients attack."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from conftest import binary, free_ports

from hostile.wire_client import Connection

TOKENS = {"red": "red-" + "r" * 40, "blue": "blue-" + "b" * 40}
CONNECTIONS = 64


@dataclass(frozen=True)
class Node:
    """A running node."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.directory / "node.sock"

    def connect(self, timeout: float = 30.0) -> Connection:
        """A connection without a hello."""
        return Connection(self.socket, timeout)

    def stranger(self) -> Connection:
        """A connection over TCP, whose peer is unknown until its hello."""
        return Connection(self.port)

    def tenant(self, name: str, job: str = "job", timeout: float = 30.0) -> Connection:
        """A connection of a tenant."""
        return self.connect(timeout).hello(job, TOKENS[name])

    def owner(self) -> Connection:
        """A connection of the node's user, who needs no token on the Unix socket."""
        return self.connect().hello("owner")

    def resident(self) -> int:
        """Bytes of the process in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
        assert sizes, "the node was killed"
        return int(sizes[0]) * 1024

    def processor_time(self) -> float:
        """Seconds that the process has computed."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(each.read_text().split()[0]) for each in threads) / 1e9

    def is_alive(self) -> bool:
        """Whether the process runs and serves its owner."""
        if self.process.poll() is not None:
            return False
        with self.owner() as connection:
            return "capacity_bytes" in connection.stats()

    def log(self) -> str:
        """What it has logged."""
        return (self.directory / "node.log").read_text(errors="replace")


@contextmanager
def running(
    directory: Path,
    *settings: str,
    connections: int = CONNECTIONS,
    before: tuple[str, ...] = (),
    of_each_tenant: tuple[str, ...] = (),
) -> Iterator[Node]:
    """Run a node with two tenants until the block ends; it must then exit with code 0."""
    (port,) = free_ports(1)
    lines = [
        f'listen = "127.0.0.1:{port}"',
        f'socket = "{directory}/node.sock"',
        f'directory = "{directory}/cache"',
        'capacity = "128MiB"',
        f"max_connections = {connections}",
        *settings,
    ]
    for name, token in TOKENS.items():
        path = directory / f"{name}.token"
        path.touch(mode=0o600)
        path.write_text(token)
        lines += ["[[tenants]]", f'name = "{name}"', f'tokens = ["{path}"]']
        lines += ['namespaces = ["public"]', *of_each_tenant]
    config = directory / "node.toml"
    config.write_text("\n".join(lines) + "\n")
    command = [*before, binary(), "serve", "--config", str(config)]
    with (
        (directory / "node.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        node = Node(directory, port, process)
        try:
            _wait(node)
            yield node
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            process.kill()
    assert process.returncode == 0, f"exited with {process.returncode}: {node.log()[-1000:]}"


def _wait(node: Node) -> None:
    deadline = time.monotonic() + 60
    while True:
        with suppress(OSError, EOFError):
            node.owner().close()
            return
        if node.process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the node does not start: {node.log()}")
        time.sleep(0.05)
