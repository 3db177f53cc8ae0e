"""The simulated store, over real connections to its real process."""

import hashlib
import http.client
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import boto3  # type: ignore[import-untyped]
import obstore
import psutil
import pytest
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.exceptions import ClientError  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import S3Store

from stoker.errors import UsageError
from stoker.sim.bucket import Bucket, KeyRefusedError
from stoker.sim.store import Store

BLOB = bytes(range(256)) * 2000  # 512,000 bytes: more than one chunk
OBJECTS = {
    "blob.bin": BLOB,
    "empty": b"",
    "images/cat/1.jpg": b"one",
    "images/cat/2.jpg": b"two",
    "images/dog é&<>/3 +.jpg": b"three",
    "images-extra": b"sorts between images and images/",
}


def fill(root: Path) -> Path:
    for key, body in OBJECTS.items():
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(body)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("store") / "root")


@pytest.fixture(scope="module")
def store(root: Path) -> Iterator[Store]:
    with Store(root) as running:
        yield running


def ask(
    store: Store, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """One request whose path is sent as it stands, without a client's tidying."""
    connection = http.client.HTTPConnection(urlsplit(store.endpoint).netloc, timeout=20)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def s3(store: Store, attempts: int = 1) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=store.endpoint,
        aws_access_key_id="any",
        aws_secret_access_key="any",
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": attempts}, proxies={}),
    )


def test_an_object_arrives_whole_with_its_md5_as_etag(store: Store) -> None:
    for key, body in OBJECTS.items():
        status, headers, got = ask(store, f"/data/{quote(key)}")
        assert (status, got) == (200, body)
        assert headers["etag"] == f'"{hashlib.md5(body).hexdigest()}"'


def test_head_tells_size_and_etag_and_sends_no_body(store: Store) -> None:
    status, headers, got = ask(store, "/data/blob.bin", "HEAD")
    assert (status, got, headers["content-length"]) == (200, b"", str(len(BLOB)))
    assert headers["etag"] == f'"{hashlib.md5(BLOB).hexdigest()}"'


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=262143-262144", 262143, 262145),  # across a chunk
        ("bytes=500000-", 500000, 512000),
        ("bytes=-5", 511995, 512000),
        ("bytes=-9999999", 0, 512000),
        ("bytes=511999-9999999", 511999, 512000),
        ("bytes=0-511999", 0, 512000),
    ],
)
def test_a_range_is_answered_with_206_and_exactly_those_bytes(store: Store, asked: str, start: int, stop: int) -> None:
    status, headers, got = ask(store, "/data/blob.bin", Range=asked)
    assert (status, got) == (206, BLOB[start:stop])
    assert headers["content-range"] == f"bytes {start}-{stop - 1}/512000"


@pytest.mark.parametrize("asked", ["bytes=512000-", "bytes=600000-700000", "bytes=-0"])
def test_a_range_beyond_the_object_is_416_and_says_the_size(store: Store, asked: str) -> None:
    status, headers, body = ask(store, "/data/blob.bin", Range=asked)
    assert status == 416
    assert headers["content-range"] == "bytes */512000"
    assert b"InvalidRange" in body


@pytest.mark.parametrize("asked", ["bytes=5-1", "bytes=0-1,4-5", "lines=1-2", "bytes=-"])
def test_a_range_that_is_not_understood_is_ignored_as_s3_does(store: Store, asked: str) -> None:
    status, _, got = ask(store, "/data/blob.bin", Range=asked)
    assert (status, got) == (200, BLOB)


ESCAPES = [
    "/data/../secret",
    "/data/images/../../secret",
    "/data/%2e%2e/secret",
    "/data/..%2fsecret",
    "/data//etc/passwd",
    "/data/%2Fetc/passwd",
    "/data/images//cat/1.jpg",
    "/data/./blob.bin",
    "/data/link/secret",
    "/data/secret-link",
    "/data/a%00b",
    "/data/.put-x",
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Store]]:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("secret")
    root = fill(outside / "root")
    (root / "link").symlink_to(outside)
    (root / "secret-link").symlink_to(outside / "secret")
    os.mkfifo(root / "pipe")
    with Store(root) as store:
        yield outside, store


@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_no_key_leaves_the_folder(guarded: tuple[Path, Store], path: str, method: str) -> None:
    outside, store = guarded
    before = sorted(outside.rglob("*"))
    status, _, body = ask(store, path, method, b"overwritten")
    assert status in {400, 404}
    assert body != b"secret"
    assert (outside / "secret").read_text() == "secret"
    assert sorted(outside.rglob("*")) == before


def test_links_are_not_listed_and_a_pipe_does_not_hang_the_store(guarded: tuple[Path, Store]) -> None:
    _, store = guarded
    assert ask(store, "/data/pipe")[0] == 404
    status, _, body = ask(store, "/data?list-type=2")
    assert status == 200
    assert b"secret" not in body
    assert b"pipe" not in body


@pytest.mark.parametrize("path", ["/data/nothing", "/data/images", "/data/images/cat", "/elsewhere/blob.bin", "/"])
def test_what_is_not_there_is_404(store: Store, path: str) -> None:
    assert ask(store, path)[0] == 404


@pytest.mark.parametrize(
    ("path", "method"),
    [("/data", "GET"), ("/data/blob.bin", "DELETE"), ("/data/blob.bin?uploads", "PUT"), ("/data?acl", "GET")],
)
def test_what_is_not_spoken_is_501_and_never_silence(store: Store, path: str, method: str) -> None:
    status, _, body = ask(store, path, method)
    assert (status, b"NotImplemented" in body) == (501, True)


@pytest.mark.parametrize("query", ["max-keys=many", "max-keys=-1", "continuation-token=%21%21"])
def test_a_wrong_listing_is_400(store: Store, query: str) -> None:
    assert ask(store, f"/data?list-type=2&{query}")[0] == 400


names = st.text("ab-/.é", min_size=1, max_size=6)


@given(
    keys=st.sets(names, max_size=12),
    prefix=st.text("ab-/", max_size=3),
    delimiter=st.sampled_from(["", "/", "-"]),
    limit=st.integers(1, 5),
)
def test_pages_together_are_what_a_flat_sorted_list_would_give(
    tmp_path_factory: pytest.TempPathFactory, keys: set[str], prefix: str, delimiter: str, limit: int
) -> None:
    bucket = Bucket(tmp_path_factory.mktemp("bucket"))
    stored = set()
    for key in keys:
        try:
            bucket.put(key, b"x")
            stored.add(key)
        except (KeyRefusedError, OSError):
            pass  # not a key, or a folder is in its place
    expected = set()
    for key in stored:
        if key.startswith(prefix):
            at = key.find(delimiter, len(prefix)) if delimiter else -1
            expected.add(key if at < 0 else key[: at + 1])
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = bucket.page(prefix, delimiter, after, limit)
        assert len(page.keys) + len(page.prefixes) <= limit
        seen += sorted(page.keys + page.prefixes)
        after = page.next_after
    assert seen == sorted(expected)


def test_boto3_lists_reads_and_writes(root: Path, tmp_path: Path) -> None:
    with Store(fill(tmp_path / "own")) as store:
        client = s3(store)
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="data", PaginationConfig={"PageSize": 2})
        listed = {entry["Key"]: entry["Size"] for page in pages for entry in page["Contents"]}
        assert listed == {key: len(body) for key, body in OBJECTS.items()}
        rolled = client.list_objects_v2(Bucket="data", Prefix="images/", Delimiter="/")
        assert [entry["Prefix"] for entry in rolled["CommonPrefixes"]] == ["images/cat/", "images/dog é&<>/"]
        etag = client.put_object(Bucket="data", Key="new/ü.bin", Body=BLOB)["ETag"]
        assert etag == f'"{hashlib.md5(BLOB).hexdigest()}"'
        assert client.get_object(Bucket="data", Key="new/ü.bin", Range="bytes=5-9")["Body"].read() == BLOB[5:10]
        client.upload_file(str(root / "blob.bin"), "data", "uploaded")
        assert client.head_object(Bucket="data", Key="uploaded")["ContentLength"] == len(BLOB)
        with pytest.raises(ClientError, match="404"):
            client.head_object(Bucket="data", Key="nothing")
    assert sorted(p.name for p in (tmp_path / "own").rglob(".put-*")) == []


def test_obstore_lists_reads_and_writes(tmp_path: Path) -> None:
    with Store(fill(tmp_path / "own")) as store:
        remote = S3Store(
            "data",
            endpoint=store.endpoint,
            access_key_id="any",
            secret_access_key="any",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        assert {entry["path"]: entry["size"] for entry in obstore.list(remote).collect()} == {
            key: len(body) for key, body in OBJECTS.items()
        }
        assert bytes(obstore.get(remote, "images/dog é&<>/3 +.jpg").bytes()) == b"three"
        assert bytes(obstore.get_range(remote, "blob.bin", start=100, length=50)) == BLOB[100:150]
        obstore.put(remote, "new.bin", b"abc", use_multipart=False)
        assert obstore.head(remote, "new.bin")["size"] == 3
        with pytest.raises(FileNotFoundError):
            obstore.get(remote, "nothing")


def test_an_upload_that_does_not_match_its_md5_is_refused_and_not_kept(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        assert ask(store, "/data/x", "PUT", b"abc", Content_MD5="AAAAAAAAAAAAAAAAAAAAAA==")[0] == 400
    assert list(tmp_path.iterdir()) == []


def test_an_upload_that_is_too_large_is_refused_whatever_length_it_announced(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        connection = http.client.HTTPConnection(urlsplit(store.endpoint).netloc, timeout=60)
        megabyte = bytes(1 << 20)
        try:
            connection.request("PUT", "/data/x", (megabyte for _ in range(300)), encode_chunked=True)
            status = connection.getresponse().status
        except ConnectionError:  # the store answered and hung up while we were still sending
            status = 400
        connection.close()
        assert status == 400
        assert ask(store, "/data/x")[0] == 404
    assert list(tmp_path.iterdir()) == []


def test_a_store_made_before_a_fork_runs_in_the_child(root: Path) -> None:
    store = Store(root)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with store:
                time.sleep(0.5)  # longer than the store takes to look for its parent
                code = 0 if ask(store, "/data/empty")[0] == 200 else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_an_aws_chunked_upload_is_unwrapped(tmp_path: Path) -> None:
    framed = b"5;chunk-signature=0\r\nhello\r\n3\r\n me\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
    with Store(tmp_path) as store:
        assert ask(store, "/data/x", "PUT", framed, Content_Encoding="aws-chunked")[0] == 200
        assert ask(store, "/data/y", "PUT", b"zz\r\nno", Content_Encoding="aws-chunked")[0] == 400
    assert (tmp_path / "x").read_bytes() == b"hello me"


def test_each_fault_is_seen_by_a_client_the_way_it_would_be_on_s3(root: Path) -> None:
    faults = ["500:nth=1", "503:nth=2", "cut:nth=3", "truncate:nth=4", "corrupt:nth=5"]
    with Store(root, faults=faults) as store:
        assert [ask(store, "/data/blob.bin")[0] for _ in range(2)] == [500, 503]
        with pytest.raises(http.client.IncompleteRead) as cut:
            ask(store, "/data/blob.bin")
        assert cut.value.partial == BLOB[: len(BLOB) // 2]
        _, headers, truncated = ask(store, "/data/blob.bin")
        assert truncated == BLOB[: len(BLOB) // 2]
        assert headers["content-length"] == str(len(truncated))
        _, headers, corrupt = ask(store, "/data/blob.bin")
        assert len(corrupt) == len(BLOB)
        assert sum(a != b for a, b in zip(corrupt, BLOB, strict=True)) == 1
        assert headers["etag"] == f'"{hashlib.md5(BLOB).hexdigest()}"'
        assert ask(store, "/data/blob.bin")[2] == BLOB
        assert store.stats()["faults"] == {"500": 1, "503": 1, "cut": 1, "truncate": 1, "corrupt": 1}


def test_a_client_that_retries_gets_through_a_rate_of_faults(root: Path) -> None:
    with Store(root, faults=["503:rate=0.3", "cut:rate=0.1"], seed=3) as store:
        client = s3(store, attempts=10)
        for _ in range(3):
            assert client.get_object(Bucket="data", Key="images/cat/1.jpg")["Body"].read() == b"one"
        rates = [ask(store, "/data/empty")[0] for _ in range(200)]
    assert 20 <= rates.count(503) <= 110


def test_latency_is_paid_before_each_answer_and_overlaps_between_connections(root: Path) -> None:
    with Store(root, latency_s=0.2, jitter_s=0.05) as store:
        began = time.monotonic()
        clients = [
            subprocess.Popen(
                [sys.executable, "-c", f"import urllib.request as u; u.urlopen('{store.url}/empty').read()"]
            )
            for _ in range(4)
        ]
        assert [client.wait(60) for client in clients] == [0] * 4
        assert time.monotonic() - began >= 0.15
        began = time.monotonic()
        ask(store, "/data/empty")
        assert time.monotonic() - began >= 0.15


def test_bandwidth_bounds_one_connection_and_all_together(root: Path) -> None:
    with Store(root, connection_bytes_per_s=2e6) as store:
        began = time.monotonic()
        assert ask(store, "/data/blob.bin")[2] == BLOB
        assert time.monotonic() - began >= len(BLOB) / 2e6 * 0.9
    with Store(root, total_bytes_per_s=4e6) as store:
        began = time.monotonic()
        for _ in range(3):
            ask(store, "/data/blob.bin")
        assert time.monotonic() - began >= 3 * len(BLOB) / 4e6 * 0.9


def test_stats_count_what_was_asked(root: Path) -> None:
    with Store(root) as store:
        ask(store, "/data/blob.bin")
        ask(store, "/data/blob.bin", "HEAD")
        ask(store, "/data?list-type=2")
        stats = store.stats()
    assert {name: stats[name] for name in ("requests", "reads", "heads", "lists", "writes")} == {
        "requests": 3, "reads": 1, "heads": 1, "lists": 1, "writes": 0,
    }  # fmt: skip
    assert stats["bytes_sent"] == len(BLOB)


def test_closing_leaves_no_process_and_it_can_start_again(root: Path) -> None:
    store = Store(root)
    for _ in range(2):
        with store:
            pid = store.pid
            assert pid is not None
            assert psutil.pid_exists(pid)
            with pytest.raises(UsageError, match="already running"):
                store.start()
        assert not psutil.pid_exists(pid)
        assert store.pid is None


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM])
def test_the_store_ends_with_its_parent_however_that_ends(root: Path, blow: signal.Signals) -> None:
    code = (
        f"import time; from stoker.sim.store import Store; store = Store({str(root)!r}).start(); "
        "print(store.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    child = psutil.Process(pid)
    parent.send_signal(blow)
    parent.communicate(timeout=20)
    child.wait(timeout=20)
    assert not psutil.pid_exists(pid)


def test_a_forked_copy_does_not_close_its_parents_store(root: Path) -> None:
    with Store(root) as store:
        pid = os.fork()
        if pid == 0:
            store.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert ask(store, "/data/empty")[0] == 200


def test_it_listens_on_loopback_only(store: Store) -> None:
    assert store.pid is not None
    listening = [c.laddr.ip for c in psutil.Process(store.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"latency_s": -1.0}, "latency_s is -1.0; expected seconds, 0 or more"),
        ({"total_bytes_per_s": 0.0}, "expected more than 0"),
        ({"faults": ["explode:nth=1"]}, "known: 500, 503, cut"),
        ({"faults": ["503"]}, "expected kind:rate=0.05 or kind:nth=3"),
        ({"faults": ["503:rate=2"]}, "between 0 and 1"),
        ({"faults": ["503:nth=0"]}, "expected 1 or more"),
        ({"faults": ["503:rate=0"]}, "needs either a rate above 0 or an nth"),
    ],
)
def test_a_wrong_setting_is_named(root: Path, arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Store(root, **arguments)  # type: ignore[arg-type]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere is not a folder"):
        Store(tmp_path / "nowhere")


def test_a_taken_port_is_one_line_and_leaves_no_process(root: Path, store: Store) -> None:
    port = int(store.endpoint.rpartition(":")[2])
    with pytest.raises(UsageError, match=f"cannot listen on port {port}"):
        Store(root, port=port).start()


@pytest.mark.parametrize(
    "arguments",
    [
        ["nowhere"],
        [".", "--latency-ms", "x"],
        [".", "--fault", "boom:nth=1"],
        [".", "--port", "99999999"],
        [],
        [".", "--latency-ms", "-3"],
    ],
)
def test_the_command_line_complains_in_one_line_with_exit_code_2(tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stoker.sim.store", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_the_command_line_serves_until_interrupted(root: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker.sim.store", str(root), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    with urllib.request.urlopen(f"{url}/empty") as answer:
        assert answer.read() == b""
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{url}/nothing")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 0
