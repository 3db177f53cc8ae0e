"""Listing, signing and checksums against moto's server, which is slower than the simulated store and more faithful."""

import io
import json
import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import numpy as np
import pytest
from botocore.config import Config  # type: ignore[import-untyped]
from moto.server import ThreadedMotoServer
from PIL import Image

import stoker
from loader import sources
from loader.sources import SIDE, check, png
from stoker import errors
from stoker.loader.front import Loader

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A fresh bucket, and the environment that AWS tools use to reach it."""
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST"), timeout=10).close()
    environment = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in (environment | {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}).items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", config=Config(retries={"max_attempts": 1}))
    client.create_bucket(Bucket="photos")
    yield client
    client.close()


def put(client: Any, count: int = 12) -> None:
    for number in range(count):
        client.put_object(Bucket="photos", Key=f"train/c{number // 6:03}/{number:05}.png", Body=png(number))


def test_a_bucket_is_listed_signed_verified_and_cached_with_the_usual_environment(bucket: Any, tmp_path: Path) -> None:
    put(bucket)
    bucket.put_object(Bucket="photos", Key="train/readme.txt", Body=b"no image")
    bucket.put_object(Bucket="photos", Key="train_other/c000/00099.png", Body=png(99))
    for _ in range(2):
        source = stoker.open("s3://photos/train/", size=SIDE, cache=tmp_path / "cache", cache_bytes="20GB")
        with Loader(source, 5, True) as loader:
            for _ in range(2):
                assert sorted(i for batch in loader for i in check(batch)) == list(range(12))
            figures = loader.stats().remote
    assert figures is not None
    assert (figures.requests, figures.cache_hits > 0, figures.rejected) == (0, True, 0)


def test_tables_are_read_by_ranges_and_checked_by_their_tags(bucket: Any, tmp_path: Path) -> None:
    sources.npy(tmp_path / "npy", [20, 40]).close()
    sources.parquet(tmp_path / "parquet", [20, 40]).close()
    for path in [*(tmp_path / "npy").iterdir(), *(tmp_path / "parquet").iterdir()]:
        bucket.put_object(Bucket="photos", Key=f"{path.suffix[1:]}/{path.name}", Body=path.read_bytes())
    for kind in ("npy", "parquet"):
        source = stoker.open(f"s3://photos/{kind}/", cache=tmp_path / "cache")
        with Loader(source, 8, True) as loader:
            assert sorted(i for batch in loader for i in check(batch)) == list(range(60))
        fresh = stoker.open(f"s3://photos/{kind}/*.{kind}")
        bucket.put_object(Bucket="photos", Key=f"{kind}/001.{kind}", Body=b"another")
        with (
            pytest.raises(errors.ChangedError, match=rf"{kind}/001\.{kind}: changed since"),
            Loader(fresh, 8) as loader,
        ):
            list(loader)


def test_more_objects_than_one_page_lists(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "50")
    for number in range(105):
        bucket.put_object(Bucket="photos", Key=f"many/c/{number:05}.png", Body=png(0))
    assert len(stoker.open("s3://photos/many", size=SIDE)) == 105


def test_an_upload_in_parts_has_no_md5_and_is_checked_by_its_tag(bucket: Any, tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (1500, 1500, 3), np.uint8)).save(file, "png")
    body, part = file.getvalue(), 5 << 20
    assert len(body) > part
    where = {"Bucket": "photos", "Key": "big/c/one.png"}
    upload = bucket.create_multipart_upload(**where)["UploadId"]
    parts = [
        {
            "PartNumber": n,
            "ETag": bucket.upload_part(**where, UploadId=upload, PartNumber=n, Body=piece)["ETag"],
        }
        for n, piece in enumerate((body[:part], body[part:]), 1)
    ]
    bucket.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})
    source: Any = stoker.open("s3://photos/big/", size=8, cache=tmp_path / "cache")
    assert source.manifest.tag(0).endswith("-2")
    with Loader(source, 1) as loader:
        assert next(iter(loader))["image"].shape == (1, 3, 8, 8)
    source = stoker.open("s3://photos/big/", size=8)
    bucket.put_object(**where, Body=body[:-1])
    with (
        Loader(source, 1) as loader,
        pytest.raises(errors.ChangedError, match=r"one\.png: changed since it was listed"),
    ):
        next(iter(loader))


def test_keys_with_dots_and_slashes_are_loaded_or_refused_and_nothing_is_written_outside(
    bucket: Any, tmp_path: Path
) -> None:
    put(bucket, 3)
    for key in ("train/c000/a b%20ü+.png", "train/c000/...png"):
        bucket.put_object(Bucket="photos", Key=key, Body=png(0))
    cache = tmp_path / "deep" / "cache"
    with Loader(stoker.open("s3://photos/train/", size=SIDE, cache=cache), 8) as loader:
        keys = [key for batch in loader for key in batch["key"]]
    assert set(keys) == {"c000/a b%20ü+.png", "c000/...png", *(f"c000/{n:05}.png" for n in range(3))}
    for key in ("train/../../outside.png", "train//leading.png"):
        bucket.put_object(Bucket="photos", Key=key, Body=png(0))
        with pytest.raises(errors.StokerError, match="s3://photos/train/"):
            stoker.open("s3://photos/train/", size=SIDE, cache=cache, relist=True, retries=0)
        bucket.delete_object(Bucket="photos", Key=key)
    assert {path.name for path in tmp_path.rglob("*") if path.parent in (tmp_path, tmp_path / "deep")} == {
        "deep",
        "cache",
    }


def test_a_wrong_secret_and_missing_rights_are_named(
    bucket: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, 3)
    iam = boto3.client("iam")
    iam.create_user(UserName="reader")
    allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    iam.create_user(UserName="nobody")
    other = iam.create_access_key(UserName="nobody")["AccessKey"]
    iam.close()
    strict(endpoint, 0)
    try:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        with Loader(stoker.open("s3://photos/train/", size=SIDE), 3) as loader:
            assert [check(batch) for batch in loader] == [[0, 1, 2]]
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(
            errors.AccessError, match=r"s3://photos/train/: access is denied \(403 SignatureDoesNotMatch\)"
        ):
            stoker.open("s3://photos/train/", size=SIDE)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", other["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", other["SecretAccessKey"])
        with pytest.raises(errors.AccessError, match=r"access is denied \(403 AccessDenied\)"):
            stoker.open("s3://photos/train/", size=SIDE)
    finally:
        strict(endpoint, 10**6)


def strict(endpoint: str, free_actions: int) -> None:
    """Let moto check signatures and rights after so many more actions."""
    request = urllib.request.Request(
        f"{endpoint}/moto-api/reset-auth", data=str(free_actions).encode(), headers={"Content-Type": "text/plain"}
    )
    urllib.request.urlopen(request, timeout=10).close()


def test_no_bucket_is_named(bucket: Any) -> None:
    with pytest.raises(errors.NoDataError, match=r"s3://nowhere/: there is no such bucket"):
        stoker.open("s3://nowhere/", size=SIDE)
