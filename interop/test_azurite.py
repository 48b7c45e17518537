"""Azurite, Microsoft's emulator of Azure Blob Storage: ``az://`` is listed, read and verified."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Forebay, free_ports, server

VERSION = "3.37.0"
# The emulator's account, which is public.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


def installed(cache: Path) -> str:
    """Path of the emulator: from ``AZURITE_BIN``, or installed once with npm."""
    named = os.environ.get("AZURITE_BIN")
    if named:
        return named
    binary = cache / VERSION / "node_modules" / ".bin" / "azurite-blob"
    if not binary.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("Azurite is not installed: set AZURITE_BIN, or install npm")
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(cache / VERSION)]
        try:
            ran = subprocess.run(
                [*command, f"azurite@{VERSION}"],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pytest.skip("Azurite cannot be installed: npm took more than five minutes")
        if ran.returncode != 0:
            pytest.skip(f"Azurite cannot be installed: {ran.stderr[-500:]}")
    return str(binary)


@dataclass(frozen=True)
class Azure:
    """A running emulator, with a minimal client."""

    endpoint: str

    def request(self, method: str, path: str, body: bytes = b"", query: str = "") -> int:
        """Send one request, signed with the account's key; return the status."""
        headers = {
            "x-ms-date": email.utils.formatdate(usegmt=True),
            "x-ms-version": "2021-08-06",
        }
        if method == "PUT" and not query:
            headers["x-ms-blob-type"] = "BlockBlob"
        encoded = urllib.parse.quote(path)
        resource = f"/{ACCOUNT}/{ACCOUNT}/{encoded}"
        for pair in sorted(filter(None, query.split("&"))):
            name, value = pair.split("=")
            resource += f"\n{name}:{value}"
        length = str(len(body)) if body else ""
        kind = "application/octet-stream" if method == "PUT" else ""
        signed = "\n".join(f"{name}:{value}" for name, value in sorted(headers.items()))
        text = f"{method}\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n{signed}\n{resource}"
        mac = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256)
        signature = base64.b64encode(mac.digest()).decode()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
        if kind:
            headers["Content-Type"] = kind
        url = f"{self.endpoint}/{encoded}" + (f"?{query}" if query else "")
        data = body if method == "PUT" else None
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return int(error.code)

    def put(self, path: str, content: bytes) -> None:
        status = self.request("PUT", path, content)
        assert status == 201, f"putting {path} ended with {status}"


@pytest.fixture(scope="module")
def azure(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Azure]:
    """An emulator with an empty container, ``container``."""
    cache = request.config.cache
    assert cache is not None
    binary = installed(cache.mkdir("azurite"))
    directory = tmp_path_factory.mktemp("azurite")
    [port] = free_ports(1)
    command = [
        *(binary, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--skipApiVersionCheck"),
        *("--location", str(directory), "--silent", "--disableTelemetry"),
    ]
    azure = Azure(f"http://127.0.0.1:{port}/{ACCOUNT}")

    def ready() -> bool:
        try:
            return azure.request("PUT", "container", query="restype=container") in {201, 409}
        except OSError:
            return False

    with server(command, directory / "log", ready):
        yield azure


@pytest.fixture
def forebay(azure: Azure, tmp_path: Path) -> Forebay:
    environment = {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
        "AZURE_STORAGE_ENDPOINT": azure.endpoint,
        "PATH": os.environ["PATH"],
    }
    return Forebay(tmp_path, environment)


def test_a_dataset_is_the_same_as_its_local_mirror(azure: Azure, forebay: Forebay) -> None:
    keys = ["a.b", "a/c", "a b/ü.bin", "z"]
    for key in keys:
        azure.put(f"container/train/{key}", key.encode() * 100)
        path = forebay.directory / "mirror" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(key.encode() * 100)
    remote = forebay.json("digest", "build", "az://container/train", "-o", "az.digest")
    local = forebay.json("digest", "build", "mirror", "-o", "local.digest")
    assert remote["items"] == len(keys)
    assert remote["dataset"] == local["dataset"]
    assert forebay.json("digest", "verify", "az.digest")["rewritten"] == 0


def test_changed_and_vanished_objects_are_reported(azure: Azure, forebay: Forebay) -> None:
    for key in ("a", "b", "c"):
        azure.put(f"container/moving/{key}", key.encode())
    forebay.json("digest", "build", "az://container/moving", "-o", "x.digest")
    azure.put("container/moving/b", b"!")
    assert azure.request("DELETE", "container/moving/c") == 202
    report = forebay.json("digest", "verify", "x.digest", code=1)
    assert (report["changed"], report["vanished"]) == (["b"], ["c"])


def test_missing_and_denied_containers_are_errors(azure: Azure, forebay: Forebay) -> None:
    azure.put("container/x", b"x")
    line = forebay.refused("digest", "build", "az://no-such-container/x", "-o", "x.digest")
    assert "`az://no-such-container/x` does not exist" in line
    wrong = {"AZURE_STORAGE_ACCOUNT_KEY": base64.b64encode(b"guess").decode()}
    line = forebay.refused("digest", "build", "az://container", "-o", "x.digest", env=wrong)
    assert "is denied" in line
    assert list(forebay.directory.iterdir()) == []
