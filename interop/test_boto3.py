"""boto3, unmodified and with its defaults, works with a dev origin."""

from __future__ import annotations

import hashlib
import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import Config
from botocore.exceptions import ClientError
from conftest import REGION, Origin

# boto3 generates its clients at run time; without its optional stubs they have no types.
Client = Any


def connect(origin: Origin, *, access_key: str | None = None, secret: str | None = None) -> Client:
    return boto3.client(
        "s3",
        endpoint_url=origin.endpoint,
        aws_access_key_id=access_key or origin.access_key,
        aws_secret_access_key=secret or origin.secret_key,
        region_name=REGION,
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )


@pytest.fixture
def s3(origin: Origin) -> Iterator[Client]:
    client = connect(origin)
    yield client
    client.close()


@pytest.fixture
def bucket(s3: Client, request: pytest.FixtureRequest) -> str:
    name = "b-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:16]
    s3.create_bucket(Bucket=name)
    return name


def failure(error: pytest.ExceptionInfo[ClientError]) -> tuple[int, str]:
    response: Any = error.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def test_an_object_is_read_whole_in_ranges_and_by_head(s3: Client, bucket: str) -> None:
    content = os.urandom(100_000)
    put = s3.put_object(Bucket=bucket, Key="a/b.bin", Body=content)
    got = s3.get_object(Bucket=bucket, Key="a/b.bin")
    assert got["Body"].read() == content
    head = s3.head_object(Bucket=bucket, Key="a/b.bin")
    assert head["ContentLength"] == len(content)
    assert put["ETag"] == got["ETag"] == head["ETag"]
    for requested, expected in [
        ("bytes=10-19", content[10:20]),
        ("bytes=99990-", content[-10:]),
        ("bytes=-7", content[-7:]),
        ("bytes=99999-200000", content[-1:]),
    ]:
        part = s3.get_object(Bucket=bucket, Key="a/b.bin", Range=requested)
        assert part["Body"].read() == expected, requested
        assert part["ResponseMetadata"]["HTTPStatusCode"] == 206
    with pytest.raises(ClientError) as error:
        s3.get_object(Bucket=bucket, Key="a/b.bin", Range="bytes=100000-")
    assert failure(error) == (416, "InvalidRange")


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_every_checksum_is_accepted(s3: Client, bucket: str, algorithm: str) -> None:
    if algorithm in {"CRC32C", "CRC64NVME"}:
        pytest.importorskip("awscrt", reason="boto3 computes this one only with awscrt")
    s3.put_object(Bucket=bucket, Key="k", Body=b"content", ChecksumAlgorithm=algorithm)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"content"


def test_a_wrong_checksum_leaves_no_object(s3: Client, bucket: str, origin: Origin) -> None:
    for wrong in ({"ChecksumCRC32": "AAAAAA=="}, {"ContentMD5": "1B2M2Y8AsgTpgAmY7PhCfg=="}):
        with pytest.raises(ClientError) as error:
            s3.put_object(Bucket=bucket, Key="k", Body=b"content", **wrong)
        assert failure(error) == (400, "BadDigest")
    assert list((origin.root / bucket).iterdir()) == []


@pytest.mark.parametrize(
    "key", ["with space", "ünï/çødé 東京", "100%", "a+b", "a%2Fb", "q?x=1&y#z"]
)
def test_unusual_keys_survive_a_round_trip(s3: Client, bucket: str, key: str) -> None:
    s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()
    assert [item["Key"] for item in s3.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    assert [item["Key"] for item in s3.list_objects(Bucket=bucket)["Contents"]] == [key]
    s3.delete_object(Bucket=bucket, Key=key)
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


@pytest.mark.parametrize("operation", ["list_objects_v2", "list_objects"])
def test_listings_page_in_key_order(
    s3: Client, bucket: str, operation: str, origin: Origin
) -> None:
    keys = [f"{top}{n}" for n in range(60) for top in ("d/", "d.", "d0", "e/f/", "")]
    for key in keys:
        path = origin.root / bucket / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    pages = s3.get_paginator(operation).paginate(Bucket=bucket, PaginationConfig={"PageSize": 7})
    assert [item["Key"] for page in pages for item in page.get("Contents", [])] == sorted(keys)

    pages = s3.get_paginator(operation).paginate(
        Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": 7}
    )
    objects, prefixes = [], []
    for page in pages:
        objects += [item["Key"] for item in page.get("Contents", [])]
        prefixes += [item["Prefix"] for item in page.get("CommonPrefixes", [])]
    assert objects == sorted(key for key in keys if "/" not in key)
    assert prefixes == ["d/", "e/"]


def test_large_files_are_transferred_in_parts(s3: Client, bucket: str, tmp_path: Path) -> None:
    content = os.urandom(20_000_003)
    (tmp_path / "up").write_bytes(content)
    s3.upload_file(str(tmp_path / "up"), bucket, "large.bin")
    s3.download_file(bucket, "large.bin", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == content


def test_an_aborted_upload_no_longer_exists(s3: Client, bucket: str) -> None:
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"x")
    s3.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload)
    with pytest.raises(ClientError) as error:
        s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=2, Body=b"x")
    assert failure(error) == (404, "NoSuchUpload")
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_conditions_on_reads(s3: Client, bucket: str) -> None:
    first = s3.put_object(Bucket=bucket, Key="k", Body=b"one")["ETag"]
    second = s3.put_object(Bucket=bucket, Key="k", Body=b"two")["ETag"]
    assert first != second
    got = s3.get_object(Bucket=bucket, Key="k", IfMatch=second, IfNoneMatch=first)
    assert got["Body"].read() == b"two"
    for read in (s3.get_object, s3.head_object):
        with pytest.raises(ClientError) as error:
            read(Bucket=bucket, Key="k", IfMatch=first)
        assert failure(error)[0] == 412
        with pytest.raises(ClientError) as error:
            read(Bucket=bucket, Key="k", IfNoneMatch=second)
        assert failure(error)[0] == 304
        with pytest.raises(ClientError) as error:
            read(Bucket=bucket, Key="k", IfModifiedSince=got["LastModified"])
        assert failure(error)[0] == 304
        read(Bucket=bucket, Key="k", IfUnmodifiedSince=got["LastModified"])


def test_conditions_on_writes(s3: Client, bucket: str) -> None:
    first = s3.put_object(Bucket=bucket, Key="k", Body=b"one", IfNoneMatch="*")["ETag"]
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket=bucket, Key="k", Body=b"two", IfNoneMatch="*")
    assert failure(error) == (412, "PreconditionFailed")
    s3.put_object(Bucket=bucket, Key="k", Body=b"two", IfMatch=first)
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket=bucket, Key="k", Body=b"three", IfMatch=first)
    assert failure(error) == (412, "PreconditionFailed")
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"two"


def test_copy_delete_and_buckets(s3: Client, bucket: str) -> None:
    for n in range(3):
        s3.put_object(Bucket=bucket, Key=f"dir/{n}", Body=b"x")
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "dir/0"})
    with pytest.raises(ClientError) as error:
        s3.delete_bucket(Bucket=bucket)
    assert failure(error) == (409, "BucketNotEmpty")
    keys = [{"Key": key} for key in ("dir/0", "dir/1", "dir/2", "copy", "never/there")]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": keys})
    assert len(answer["Deleted"]) == 5
    assert bucket in [item["Name"] for item in s3.list_buckets()["Buckets"]]
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    s3.delete_bucket(Bucket=bucket)
    with pytest.raises(ClientError) as error:
        s3.head_bucket(Bucket=bucket)
    assert failure(error)[0] == 404


def test_missing_keys_and_buckets_are_errors(s3: Client, bucket: str) -> None:
    with pytest.raises(ClientError) as error:
        s3.get_object(Bucket=bucket, Key="missing")
    assert failure(error) == (404, "NoSuchKey")
    with pytest.raises(ClientError) as error:
        s3.get_object(Bucket="no-such-bucket", Key="missing")
    assert failure(error) == (404, "NoSuchBucket")
    with pytest.raises(ClientError) as error:
        s3.list_objects_v2(Bucket="no-such-bucket")
    assert failure(error) == (404, "NoSuchBucket")


def test_wrong_credentials_are_refused(origin: Origin, bucket: str) -> None:
    with pytest.raises(ClientError) as error:
        connect(origin, access_key="other").list_objects_v2(Bucket=bucket)
    assert failure(error) == (403, "InvalidAccessKeyId")
    with pytest.raises(ClientError) as error:
        connect(origin, secret="guess").list_objects_v2(Bucket=bucket)
    assert failure(error) == (403, "SignatureDoesNotMatch")


def test_a_presigned_url_needs_no_credentials(s3: Client, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"content")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k"})
    with urllib.request.urlopen(url) as response:
        assert response.read() == b"content"


def test_the_counters_have_the_bytes_of_an_object(s3: Client, bucket: str, origin: Origin) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=bytes(1000))
    reset = urllib.request.Request(f"{origin.endpoint}/-/counters/reset", method="POST")
    urllib.request.urlopen(reset).close()
    for _ in range(3):
        s3.get_object(Bucket=bucket, Key="k", Range="bytes=0-99")["Body"].read()
    with urllib.request.urlopen(f"{origin.endpoint}/-/counters") as response:
        counters = json.load(response)
    assert counters["requests"]["get"] == 3
    assert counters["bytes_sent"] == 300
    assert counters["objects"] == {f"{bucket}/k": {"gets": 3, "bytes_sent": 300}}
