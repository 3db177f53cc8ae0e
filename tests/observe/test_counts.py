"""What a process asks other machines for."""

import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3  # type: ignore[import-untyped]
import pytest

from stoker.observe.probe_counts import Counts, address_of


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()


def test_what_is_asked_for_is_known_by_its_address_and_signed_requests_by_their_bucket(server: str) -> None:
    counts = Counts()
    counts.start()
    try:
        for key in ("a/1.jpg", "b/2.jpg", "tile?id=7"):
            urllib.request.urlopen(f"{server}/photos/{key}").read()
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=server, **keys)
        client.get_object(Bucket="photos", Key="c/3.jpg")["Body"].read()
    finally:
        counts.stop()
    found = [name for name in counts.examples if "://" in name]
    assert found == [f"{server}/photos/a/1.jpg", f"{server}/photos/b/2.jpg", "s3://photos/c/3.jpg"]
    assert counts.requests >= 4


@pytest.mark.parametrize(
    ("data", "address"),
    [
        (
            b"GET /k/1.jpg HTTP/1.1\r\nHost: b.s3.eu-west-1.amazonaws.com\r\nAuthorization: AWS4-HMAC x\r\n",
            "s3://b/k/1.jpg",
        ),
        (b"GET /k/1.jpg HTTP/1.1\r\n", None),
        (b"PUT /k/1.jpg HTTP/1.1\r\nHost: h\r\n", None),
        (b"GET /", None),
        (b"\xff\xfe", None),
        ("text", None),
    ],
)
def test_other_requests_are_told_apart(data: object, address: str | None) -> None:
    assert address_of(None, data) == address
