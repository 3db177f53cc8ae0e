"""The simulated store's side of the wire: the part of S3's protocol that readers of training data use, over a bad link.

Signatures are accepted unread. What is not spoken here (multipart, versions, access control) is answered with 501,
never with silence.
"""

import asyncio
import base64
import hashlib
import os
import random
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import escape

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from stoker.sim.bucket import Bucket, KeyRefusedError
from stoker.sim.link import Fault, Link

CHUNK_BYTES = 256 << 10  # a whole small image in one read, a smooth flow under a bandwidth limit
HASH_INLINE_BYTES = 1 << 20  # hashing more than this would hold up other answers
PUT_LIMIT_BYTES = 256 << 20  # bodies are held in memory until they are whole
PAGE_LIMIT = 1000  # S3's own
STATS_PATH = "/-/stats"
_XMLNS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_SPOKEN = {"list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type"}
_UNREAD = {"fetch-owner", "x-id"}  # harmless to leave out


class Refusal(Exception):  # noqa: N818 (an answer, not a failure)
    """An S3 error on its way to the client."""

    def __init__(self, status: HTTPStatus, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


class CutError(Exception):
    """Raised in mid-body so that the server drops the connection."""


@dataclass
class Stats:
    """What the store has answered so far."""

    requests: int = 0
    reads: int = 0
    lists: int = 0
    heads: int = 0
    writes: int = 0
    bytes_sent: int = 0
    in_flight_max: int = 0
    faults: dict[str, int] = field(default_factory=dict)


class Pace:
    """Spreads bytes over time: a clock that runs ahead by what was sent."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._s_per_byte = 0.0 if bytes_per_s is None else 1 / bytes_per_s
        self._free_at = 0.0

    async def take(self, count: int) -> None:
        """Return when `count` more bytes may have arrived."""
        if self._s_per_byte:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + count * self._s_per_byte
            await asyncio.sleep(self._free_at - now)


class Wire:
    """The ASGI application: one bucket behind one link."""

    def __init__(self, name: str, bucket: Bucket, link: Link) -> None:
        self.name, self.bucket, self.link = name, bucket, link
        self.stats = Stats()
        self._random = random.Random(link.seed)  # noqa: S311 (weather, not secrets)
        self._total = Pace(link.total_bytes_per_s)
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        if scope["path"] == STATS_PATH:
            await JSONResponse(asdict(self.stats))(scope, receive, send)
            return
        self._in_flight += 1
        self.stats.requests += 1
        self.stats.in_flight_max = max(self.stats.in_flight_max, self._in_flight)
        try:
            await self._latency()
            await self._answer(request, send)
        except Refusal as refusal:
            await _error(refusal, request)(scope, receive, send)
        finally:
            self._in_flight -= 1

    async def _latency(self) -> None:
        link = self.link
        if link.latency_s or link.jitter_s:
            await asyncio.sleep(link.latency_s + self._random.uniform(-link.jitter_s, link.jitter_s))

    async def _answer(self, request: Request, send: Send) -> None:
        name, _, key = request.scope["path"].removeprefix("/").partition("/")
        if name != self.name:
            raise Refusal(HTTPStatus.NOT_FOUND, "NoSuchBucket", f"the store has one bucket, {self.name}")
        _only_spoken(request)
        if key:
            await self._object(request, key, send)
        else:
            response = await self._listing(request)
            await response(request.scope, request.receive, send)

    async def _object(self, request: Request, key: str, send: Send) -> None:
        try:
            path = self.bucket.path(key)
        except KeyRefusedError as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, "InvalidArgument", str(error)) from error
        if request.method == "PUT":
            self.stats.writes += 1
            response = Response(headers={"ETag": f'"{await self._put(request, key)}"'})
            await response(request.scope, request.receive, send)
        elif request.method in {"GET", "HEAD"}:
            await self._read(request, path, send)
        else:
            raise _unspoken(f"method {request.method}")

    async def _read(self, request: Request, path: Path, send: Send) -> None:
        fault = self._strike() if request.method == "GET" else None
        if fault in {"500", "503"}:
            raise _trouble(fault)
        try:
            # Not blocking: the folder might hold a pipe.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise _missing() from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _missing()
            await self._send_object(request, path, descriptor, fault, send)
        finally:
            os.close(descriptor)

    async def _send_object(self, request: Request, path: Path, descriptor: int, fault: str | None, send: Send) -> None:
        info = os.fstat(descriptor)
        part = _byte_range(request.headers.get("range"), info.st_size)
        start, stop = part or (0, info.st_size)
        headers = {
            "ETag": f'"{await self._etag(path, info.st_size)}"',
            "Last-Modified": formatdate(info.st_mtime, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
            "Content-Length": str(stop - start),
        }
        if part:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{info.st_size}"
        if fault == "truncate":
            stop = start + (stop - start) // 2
            headers["Content-Length"] = str(stop - start)
        status = HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK
        await send({"type": "http.response.start", "status": status, "headers": _raw(headers)})
        if request.method == "HEAD":
            self.stats.heads += 1
            await send({"type": "http.response.body"})
        else:
            await self._send_body(descriptor, start, stop, fault, send)

    async def _send_body(self, descriptor: int, start: int, stop: int, fault: str | None, send: Send) -> None:
        connection = Pace(self.link.connection_bytes_per_s)  # HTTP/1.1: one answer at a time on a connection
        spoiled_at = (start + stop) // 2
        for at, chunk in _chunks(descriptor, start, stop):
            body = chunk
            if fault in {"cut", "corrupt"} and at <= spoiled_at < at + len(chunk):
                body = chunk[: spoiled_at - at] if fault == "cut" else _flipped(chunk, spoiled_at - at)
            await self._total.take(len(body))
            await connection.take(len(body))
            self.stats.bytes_sent += len(body)
            await send({"type": "http.response.body", "body": body, "more_body": at + len(body) < stop})
            if body is not chunk and fault == "cut":
                raise CutError
        if start == stop:
            await send({"type": "http.response.body"})

    def _strike(self) -> str | None:
        """The fault that hits this read, if any; the first in the list that does."""
        self.stats.reads += 1
        for fault in self.link.faults:
            if self._hits(fault):
                self.stats.faults[fault.kind] = self.stats.faults.get(fault.kind, 0) + 1
                return fault.kind
        return None

    def _hits(self, fault: Fault) -> bool:
        return fault.nth == self.stats.reads if fault.nth is not None else self._random.random() < fault.rate

    async def _etag(self, path: Path, size: int) -> str:
        if size <= HASH_INLINE_BYTES:
            return self.bucket.etag(path)
        return await asyncio.to_thread(self.bucket.etag, path)

    async def _put(self, request: Request, key: str) -> str:
        if "if-none-match" in request.headers or "if-match" in request.headers:
            raise _unspoken("a conditional upload")
        body = await _whole_body(request)
        if "aws-chunked" in request.headers.get("content-encoding", ""):
            body = _unchunked(body)
        claimed = request.headers.get("content-md5")
        if claimed and base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode() != claimed:
            raise Refusal(HTTPStatus.BAD_REQUEST, "BadDigest", "the body does not match its Content-MD5")
        try:
            return await asyncio.to_thread(self.bucket.put, key, body)
        except OSError as error:
            raise Refusal(HTTPStatus.CONFLICT, "InvalidObjectState", f"cannot be stored: {error.strerror}") from error

    async def _listing(self, request: Request) -> Response:
        query = request.query_params
        if request.method == "HEAD":
            return Response()
        if request.method != "GET" or query.get("list-type") != "2":
            raise _unspoken("anything on a bucket but ListObjectsV2")
        self.stats.lists += 1
        after, limit = _place(query)
        body = await asyncio.to_thread(self._page_xml, request, after, limit)
        return Response(body, media_type="application/xml")

    def _page_xml(self, request: Request, after: str, limit: int) -> str:
        query = request.query_params
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        page = self.bucket.page(prefix, delimiter, after, limit)

        def spell(text: str) -> str:
            return escape(quote(text) if query.get("encoding-type") == "url" else text)

        more = ""
        if page.next_after is not None:
            token = base64.urlsafe_b64encode(page.next_after.encode()).decode()
            more = f"<NextContinuationToken>{token}</NextContinuationToken>"
        encoding = "<EncodingType>url</EncodingType>" if query.get("encoding-type") == "url" else ""
        contents = "".join(self._contents_xml(key, spell(key)) for key in page.keys)
        rolled = "".join(f"<CommonPrefixes><Prefix>{spell(p)}</Prefix></CommonPrefixes>" for p in page.prefixes)
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult {_XMLNS}><Name>{self.name}</Name>'
            f"<Prefix>{spell(prefix)}</Prefix><Delimiter>{spell(delimiter)}</Delimiter><MaxKeys>{limit}</MaxKeys>"
            f"{encoding}<KeyCount>{len(page.keys) + len(page.prefixes)}</KeyCount>"
            f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{more}{contents}{rolled}</ListBucketResult>"
        )

    def _contents_xml(self, key: str, spelled: str) -> str:
        path = self.bucket.path(key)
        try:
            info, etag = path.stat(), self.bucket.etag(path)
        except FileNotFoundError:
            return ""  # gone since it was listed
        changed = datetime.fromtimestamp(info.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return (
            f"<Contents><Key>{spelled}</Key><LastModified>{changed}</LastModified><ETag>&quot;{etag}&quot;</ETag>"
            f"<Size>{info.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )


def _place(query: QueryParams) -> tuple[str, int]:
    """Where a page starts and how many entries it may have."""
    token, count = query.get("continuation-token"), query.get("max-keys", str(PAGE_LIMIT))
    try:
        after = base64.b64decode(token, b"-_", validate=True).decode() if token else query.get("start-after", "")
    except ValueError as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, "InvalidArgument", "the continuation token is not ours") from error
    if not count.isdecimal():
        raise Refusal(HTTPStatus.BAD_REQUEST, "InvalidArgument", f"max-keys is {count!r}; expected 0 to {PAGE_LIMIT}")
    return after, min(int(count), PAGE_LIMIT)


def _byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and the byte after the last one, or None for all; like S3, a range not understood is not there."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if match is None or match.group(0) == "bytes=-":
        return None
    first, last = match.groups()
    if first and last and int(last) < int(first):
        return None
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        headers = {"Content-Range": f"bytes */{size}"}
        raise Refusal(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "InvalidRange", "no such bytes", headers)
    return start, stop


def _chunks(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    at = start
    while at < stop:
        chunk = os.pread(descriptor, min(CHUNK_BYTES, stop - at), at)
        if not chunk:
            raise CutError  # the file shrank under the read; what was promised cannot be sent
        yield at, chunk
        at += len(chunk)


def _flipped(chunk: bytes, at: int) -> bytes:
    return chunk[:at] + bytes([chunk[at] ^ 0xFF]) + chunk[at + 1 :]


async def _whole_body(request: Request) -> bytes:
    """An upload's bytes, refused as soon as they are too many, whatever length was announced."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > PUT_LIMIT_BYTES:
            raise Refusal(HTTPStatus.BAD_REQUEST, "EntityTooLarge", f"one upload is at most {PUT_LIMIT_BYTES} bytes")
    return bytes(body)


def _unchunked(body: bytes) -> bytes:
    """The payload inside `aws-chunked` framing, which clients use to append a checksum."""
    payload, at = bytearray(), 0
    try:
        while True:
            line_end = body.index(b"\r\n", at)
            size = int(body[at:line_end].partition(b";")[0], 16)
            if size == 0:
                return bytes(payload)
            payload += body[line_end + 2 : line_end + 2 + size]
            at = line_end + 2 + size + 2
    except ValueError as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, "InvalidRequest", "the aws-chunked body is malformed") from error


def _only_spoken(request: Request) -> None:
    unknown = [name for name in request.query_params if name not in _SPOKEN | _UNREAD]
    if unknown:
        raise _unspoken(f"the query {unknown[0]!r}")


def _missing() -> Refusal:
    return Refusal(HTTPStatus.NOT_FOUND, "NoSuchKey", "no object has this key")


def _unspoken(what: str) -> Refusal:
    return Refusal(HTTPStatus.NOT_IMPLEMENTED, "NotImplemented", f"the simulated store does not speak {what}")


def _trouble(kind: str) -> Refusal:
    if kind == "503":
        return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown", "Please reduce your request rate.")
    return Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError", "We encountered an internal error.")


def _error(refusal: Refusal, request: Request) -> Response:
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{refusal.code}</Code>'
        f"<Message>{escape(refusal.message)}</Message><Resource>{escape(request.scope['path'])}</Resource></Error>"
    )
    if request.method == "HEAD":
        body = ""
    return Response(body, refusal.status, refusal.headers, "application/xml")


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
