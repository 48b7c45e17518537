"""Real clients get the same bytes and errors through a gateway as from the origin directly."""

from __future__ import annotations

import json
import os
import random
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pyarrow.fs
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.client import Config
from botocore.exceptions import ClientError
from conftest import REGION, Origin, binary, dev_origin

# boto3 generates its clients at run time; without its optional stubs they have no types.
Client = Any

KEY, SECRET = "vision", "interop-secret-0123456789"
BUCKET = "data"
CONTENT = random.Random(7).randbytes(20_000_000)


@dataclass(frozen=True)
class Gateway:
    """A node with an S3 endpoint in front of an origin."""

    origin: Origin
    endpoint: str
    log: Path


def key_file(path: Path, key: str, secret: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(f"aws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    return path


@contextmanager
def gateway_of(origin: Origin, directory: Path) -> Iterator[Gateway]:
    """Run ``forebay serve`` with a gateway until the block ends; it must then exit with code 0."""
    client = key_file(directory / "client.key", KEY, SECRET)
    identity = key_file(directory / "origin.key", origin.access_key, origin.secret_key)
    config = directory / "forebay.toml"
    config.write_text(
        f"""
socket = "{directory}/run/node.sock"
directory = "{directory}/node"
capacity = "64MiB"
shared_memory = "0B"
log = "trace"

[gateway]
listen = "127.0.0.1:0"
endpoint = "{origin.endpoint}"
capacity = "256MiB"
domains = ["localhost"]

[[tenants]]
name = "vision"
access_keys = ["{client}"]
origin = {{ file = "{identity}" }}
"""
    )
    log = directory / "node.log"
    with log.open("wb") as output:
        command = [binary(), "serve", "--config", str(config)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()
            yield Gateway(origin, "http://" + json.loads(line)["gateway"], log)
        finally:
            process.terminate()
            process.wait(timeout=30)
    assert process.returncode == 0, log.read_text()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("root")
    (root / BUCKET).mkdir()
    (root / BUCKET / "large.bin").write_bytes(CONTENT)
    with (
        dev_origin(root) as origin,
        gateway_of(origin, tmp_path_factory.mktemp("gateway")) as running,
    ):
        yield running


def connect(endpoint: str, key: str, secret: str, style: str = "path") -> Client:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name=REGION,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": style},
            retries={"max_attempts": 1},
        ),
    )


@pytest.fixture
def through(gateway: Gateway) -> Client:
    return connect(gateway.endpoint, f"{KEY}.job-1", SECRET)


@pytest.fixture
def direct(gateway: Gateway) -> Client:
    return connect(gateway.origin.endpoint, gateway.origin.access_key, gateway.origin.secret_key)


def test_boto3_reads_whole_objects_and_ranges_cold_and_warm(through: Client) -> None:
    for _ in range(3):
        assert through.get_object(Bucket=BUCKET, Key="large.bin")["Body"].read() == CONTENT
        for first, last in [(0, 0), (262_143, 262_144), (5_000_000, 9_000_000)]:
            got = through.get_object(Bucket=BUCKET, Key="large.bin", Range=f"bytes={first}-{last}")
            assert got["Body"].read() == CONTENT[first : last + 1]
            assert got["ContentRange"] == f"bytes {first}-{last}/{len(CONTENT)}"
        tail = through.get_object(Bucket=BUCKET, Key="large.bin", Range="bytes=-100")
        assert tail["Body"].read() == CONTENT[-100:]


def test_boto3_transfers_in_parts_and_checks_checksums(
    through: Client, direct: Client, tmp_path: Path
) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(CONTENT)
    parts = TransferConfig(multipart_threshold=1 << 20, multipart_chunksize=6 << 20)
    through.upload_file(str(source), BUCKET, "up/parts.bin", Config=parts)
    assert direct.get_object(Bucket=BUCKET, Key="up/parts.bin")["Body"].read() == CONTENT
    through.download_file(BUCKET, "up/parts.bin", str(copy), Config=parts)
    assert copy.read_bytes() == CONTENT
    # A stream: `aws-chunked` with a checksum in the trailer over https, signed over http.
    with source.open("rb") as stream:
        through.put_object(
            Bucket=BUCKET, Key="up/stream.bin", Body=stream, ChecksumAlgorithm="SHA256"
        )
    assert direct.head_object(Bucket=BUCKET, Key="up/stream.bin")["ContentLength"] == len(CONTENT)


def test_virtual_hosts_and_presigned_urls(gateway: Gateway, through: Client) -> None:
    port = gateway.endpoint.rsplit(":", 1)[1]
    by_host = connect(f"http://localhost:{port}", KEY, SECRET, "virtual")
    url = by_host.generate_presigned_url(
        "get_object", Params={"Bucket": BUCKET, "Key": "large.bin"}, ExpiresIn=60
    )
    assert f"{BUCKET}.localhost" in url
    url = through.generate_presigned_url(
        "get_object",
        Params={"Bucket": BUCKET, "Key": "large.bin", "ResponseContentType": "text/x-asked"},
        ExpiresIn=60,
    )
    with urllib.request.urlopen(url) as response:
        assert response.read() == CONTENT
        assert response.headers["Content-Type"] == "text/x-asked"


def outcome(call: Any) -> tuple[int, str]:
    try:
        call()
    except ClientError as error:
        response: Any = error.response
        return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]
    return 200, ""


def test_errors_are_those_of_the_origin(through: Client, direct: Client) -> None:
    def calls(s3: Client) -> list[tuple[int, str]]:
        tag = s3.head_object(Bucket=BUCKET, Key="large.bin")["ETag"]
        reads = [
            {"Key": "absent"},
            {"Key": "large.bin", "Range": "bytes=99999999-"},
            {"Key": "large.bin", "IfMatch": '"other"'},
            {"Key": "large.bin", "IfNoneMatch": tag},
            {"Key": "large.bin", "PartNumber": 9},
        ]
        outcomes = [outcome(lambda r=r: s3.get_object(Bucket=BUCKET, **r)) for r in reads]
        outcomes += [outcome(lambda r=r: s3.head_object(Bucket=BUCKET, **r)) for r in reads]
        outcomes.append(outcome(lambda: s3.list_objects_v2(Bucket="absent-bucket")))
        outcomes.append(outcome(lambda: s3.put_object(Bucket="absent-bucket", Key="k", Body=b"x")))
        return outcomes

    assert calls(direct) == calls(direct) == calls(through) == calls(through)


def test_writes_copies_and_deletes_are_seen_at_once(through: Client) -> None:
    def read(key: str) -> bytes:
        content: bytes = through.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return content

    for version in range(5):
        content = os.urandom(300_000 + version)
        through.put_object(Bucket=BUCKET, Key="w/a b+c%20ü", Body=content)
        assert read("w/a b+c%20ü") == content
        source = {"Bucket": BUCKET, "Key": "w/a b+c%20ü"}
        through.copy_object(Bucket=BUCKET, Key="w/copy", CopySource=source)
        assert read("w/copy") == content
    names = ["w/a b+c%20ü", "w/copy"]
    listed = through.list_objects_v2(Bucket=BUCKET, Prefix="w/")["Contents"]
    assert [entry["Key"] for entry in listed] == names
    through.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": name} for name in names]})
    for name in names:
        assert outcome(lambda name=name: read(name)) == (404, "NoSuchKey")


def test_pyarrow_reads_and_writes(gateway: Gateway, direct: Client) -> None:
    files = pyarrow.fs.S3FileSystem(
        access_key=KEY,
        secret_key=SECRET,
        endpoint_override=gateway.endpoint.removeprefix("http://"),
        scheme="http",
        region=REGION,
    )
    with files.open_input_file(f"{BUCKET}/large.bin") as file:
        assert file.size() == len(CONTENT)
        assert file.read_at(1_000_000, 3_000_000) == CONTENT[3_000_000:4_000_000]
        assert file.read() == CONTENT
    with files.open_output_stream(f"{BUCKET}/arrow/out.bin") as out:
        out.write(CONTENT)
    assert direct.get_object(Bucket=BUCKET, Key="arrow/out.bin")["Body"].read() == CONTENT
    infos = files.get_file_info(pyarrow.fs.FileSelector(f"{BUCKET}/arrow"))
    assert [info.base_name for info in infos] == ["out.bin"]


def test_the_log_has_no_secret_and_no_name_of_an_object(gateway: Gateway, through: Client) -> None:
    outcome(lambda: through.get_object(Bucket=BUCKET, Key="payroll-2026"))
    wrong = connect(gateway.endpoint, KEY, "wrong-secret-0123456789")
    assert outcome(lambda: wrong.get_object(Bucket=BUCKET, Key="payroll-2026")) == (
        403,
        "SignatureDoesNotMatch",
    )
    log = gateway.log.read_text()
    assert "S3 endpoint ready" in log
    for hidden in (SECRET, gateway.origin.secret_key, "payroll", "large.bin", "Signature="):
        assert hidden not in log
