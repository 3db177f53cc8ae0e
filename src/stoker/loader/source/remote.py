"""A place in a remote store: its listing, its objects, and what its errors mean.

s3://, gs://, az://, http:// and file:// through obstore. Endpoint, region and credentials come from the environment
that the store's own tools use (AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, GOOGLE_SERVICE_ACCOUNT …).
"""

import os
import random
import re
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stoker.errors import (
    AccessError,
    ChangedError,
    ForkedError,
    MissingExtraError,
    NoDataError,
    RemoteError,
    StokerError,
    TimedOutError,
    UnreachableError,
    UsageError,
    VanishedError,
)
from stoker.loader.source.manifest import Manifest, tag_of
from stoker.loader.source.paths import SCHEMES
from stoker.loader.source.pieces import Listed

BACKOFF_S = 0.1
BACKOFF_MOST_S = 8.0
CONNECT_S = 10.0

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_KIND = re.compile(r"kind: (Timeout|Connect|Interrupted|Request|Decode)\b")
_THROTTLED = {"429", "503"}
_DENIED = {"401", "403"}
_NOT_SPOKEN = "501"  # a plain web server that is asked for a list
_NO_RANGES = "Range request not supported"
_BEYOND = "416"  # a range that ends behind the object
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}


_used_in: list[int] = []


def check_fork() -> None:
    """Refuse to wait for threads of the store's client that stayed in the parent."""
    if not _used_in:
        _used_in.append(os.getpid())
    if _used_in[0] != os.getpid():
        raise ForkedError(
            "a store was used before this process was forked, and its client does not survive that; start the process "
            "with spawn, or open the store only in it"
        )


def check_scheme(url: str) -> None:
    """Refuse a scheme that is not known."""
    match = _SCHEME.match(url)
    if match is not None and match[1].lower() not in SCHEMES:
        raise UsageError(f"{url} has the scheme {match[1]}://; expected {', '.join(f'{s}://' for s in SCHEMES)}")


def local_folder(url: str) -> Path | None:
    """The folder of a file:// address."""
    return Path(url.removeprefix("file://")) if url.startswith("file://") else None


def backoff_s(attempt: int) -> float:
    """How long to wait before repeating a request for the n-th time; random, so that clients do not march in step."""
    return random.uniform(0.5, 1.0) * min(BACKOFF_MOST_S, BACKOFF_S * 2.0 ** (attempt - 1))  # noqa: S311


class Remote:
    """What lies below one address."""

    def __init__(
        self, url: str, *, timeout_s: float = 30.0, retries: int = 8, options: Mapping[str, Any] | None = None
    ) -> None:
        self.url = url
        self.timeout_s = timeout_s
        self.retries = retries
        if find_spec("obstore") is None:
            raise MissingExtraError("obstore", "s3")
        import obstore

        self._options = dict(options or {})
        self._obstore = obstore
        self._store = self._open(self._options)

    def _open(self, options: dict[str, Any]) -> Any:
        import obstore.store

        folder = local_folder(self.url)
        if folder is not None:
            if not folder.is_dir():
                raise NoDataError(f"{self.url}: no such folder")
            return obstore.store.LocalStore(folder.resolve())
        more: dict[str, Any] = {}
        if self.url.startswith(("s3:", "s3a:")) and _needs_profile(options):
            from obstore.auth.boto3 import Boto3CredentialProvider

            more["credential_provider"] = Boto3CredentialProvider()
        try:
            open_url: Any = obstore.store.from_url  # typed for each kind of store, and we do not know which it is
            return open_url(
                self.url.rstrip("/") if self.url.startswith("http") else self.url,  # else keys get another slash
                config=options or None,
                client_options={
                    "timeout": timedelta(seconds=self.timeout_s),
                    "connect_timeout": timedelta(seconds=min(CONNECT_S, self.timeout_s)),
                    "allow_http": _is_plain(self.url, options),
                },
                # Repeating is done here, where it can be counted, and stopped.
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=self.timeout_s)},
                **more,
            )
        except self._obstore.exceptions.BaseError as error:
            raise UsageError(f"{self.url} cannot be opened: {_first_line(error)}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "timeout_s": self.timeout_s, "retries": self.retries, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def list(self) -> Manifest:
        """All objects, in key order. Repeated from the start if the store fails."""
        check_fork()
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(backoff_s(attempt))
            try:
                pages = self._obstore.list(self._store, chunk_size=1000)
                return Manifest.of(self.url, (one for page in pages for one in page))
            except Exception as error:
                found, again = self.explain(error, self.url, attempt)
                if not again:
                    raise found from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def look_up(self, keys: Sequence[str]) -> Manifest:
        """Size and tag of objects that are named instead of listed."""
        import asyncio

        check_fork()

        async def all_heads() -> list[Any]:
            gate = asyncio.Semaphore(64)

            async def one(key: str) -> Any:
                async with gate:
                    return await self._head(key)

            return await asyncio.gather(*(one(key) for key in keys))

        with ThreadPoolExecutor(1) as thread:  # a notebook has a loop running in this one
            return Manifest.of(self.url, thread.submit(asyncio.run, all_heads()).result())

    async def _head(self, key: str) -> Any:
        import asyncio

        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(backoff_s(attempt))
            try:
                return await self._obstore.head_async(self._store, key)
            except Exception as error:
                address = f"{self.url.rstrip('/')}/{key}"
                found, again = self.explain(error, address, attempt)
                if isinstance(found, VanishedError):
                    found = VanishedError(address, "there is no such object; the address of a folder ends with /")
                if not again:
                    raise found from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def get(self, listed: Listed, row: int) -> Awaitable[Any]:
        """The bytes of an object, or of a piece of one, as soon as they are here."""
        if not listed.has_md5(row):
            return self._get_same(listed, row)
        # The body alone tells whether it is the right one, so the cheapest call will do.
        key, start, stop = listed.span(row)
        found: Awaitable[Any] = self._obstore.get_range_async(self._store, key, start=start, end=stop)
        return found

    async def _get_same(self, listed: Listed, row: int) -> Any:
        key, start, stop = listed.span(row)
        is_whole = stop - start == listed.object_bytes(row)
        options: Any = None if is_whole else {"range": (start, stop)}
        result = await self._obstore.get_async(self._store, key, options=options)
        self._check_same(listed, row, result.meta)
        return await result.bytes_async()

    async def has_changed(self, listed: Listed, row: int) -> ChangedError | None:
        """An error if the object is another one than when it was listed."""
        try:
            self._check_same(listed, row, await self._obstore.head_async(self._store, listed.span(row)[0]))
        except ChangedError as error:
            return error
        except Exception:  # noqa: BLE001  the next attempt meets it again, and names it
            return None
        return None

    def _check_same(self, listed: Listed, row: int, meta: Mapping[str, Any]) -> None:
        now = (tag_of(meta), meta["size"])
        then = (listed.tag(row), listed.object_bytes(row))
        if now != then:
            raise ChangedError(
                listed.address(row),
                f"changed since it was listed: {then[1]} bytes with tag {then[0]}, now {now[1]} with {now[0]}. "
                "Open with relist=True to take it as it is",
            )

    def explain(self, error: BaseException, url: str, attempt: int) -> tuple[StokerError, bool]:
        """What an error of the store means, and whether asking again makes sense."""
        if isinstance(error, StokerError):
            return error, False
        text = str(error)
        status, code = (m[1] if (m := pattern.search(text)) else "" for pattern in (_STATUS, _CODE))
        said = " ".join(part for part in (status, code) if part) or _first_line(error)
        often = f"after {attempt + 1} attempts: " if attempt else ""
        again = attempt < self.retries
        if isinstance(error, FileNotFoundError) or status == "404":
            if code == "NoSuchBucket":
                return NoDataError(f"{self.url}: there is no such bucket"), False
            return VanishedError(url, "the object is gone; it was there when the store was listed"), False
        if _NO_RANGES in text:
            return RemoteError(url, "the server does not send parts of an object; copy it to a local disk"), False
        if status == _BEYOND:
            gone = "changed since it was listed: it is shorter now. Open with relist=True to take it as it is"
            return ChangedError(url, gone), False
        if status in _DENIED or code in _EXPIRED or isinstance(error, PermissionError):
            what = "the credentials have expired" if code in _EXPIRED else "access is denied"
            return AccessError(url, f"{what} ({said}); renew the credentials in the environment"), False
        return self._network(text, url, f"{often}{said}", status, again)

    def _network(self, text: str, url: str, said: str, status: str, again: bool) -> tuple[StokerError, bool]:
        kind = m[1] if (m := _KIND.search(text)) else ""
        if kind == "Timeout" or "timed out" in text:
            return TimedOutError(url, f"no answer within {self.timeout_s:g} s ({said})"), again
        if "dns error" in text:
            return UnreachableError(url, f"the host is unknown ({said}); is the endpoint right?"), again
        if "credential" in text.lower() and not status:
            return AccessError(url, f"no credentials were found ({said}); set them in the environment"), False
        if kind:
            return UnreachableError(url, f"the connection failed ({said})"), again
        passes = not status or (status[0] == "5" and status != _NOT_SPOKEN) or status in _THROTTLED
        return RemoteError(url, f"the store answers {said}"), again and passes

    @staticmethod
    def is_throttling(error: BaseException) -> bool:
        """True if the store asks for fewer requests."""
        status = _STATUS.search(str(error))
        return status is not None and status[1] in _THROTTLED


def _needs_profile(options: Iterable[str]) -> bool:
    """True if credentials can only be in the files of the AWS tools, and there is a library that reads them."""
    given = {"access_key_id", "aws_access_key_id", "skip_signature", "aws_skip_signature"} & {
        o.lower() for o in options
    }
    if given or "AWS_ACCESS_KEY_ID" in os.environ or "AWS_SKIP_SIGNATURE" in os.environ:
        return False
    file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", Path.home() / ".aws" / "credentials"))
    return ("AWS_PROFILE" in os.environ or file.exists()) and find_spec("boto3") is not None


def _is_plain(url: str, options: Mapping[str, Any]) -> bool:
    """True if the endpoint that was named has no TLS."""
    named = [str(value) for name, value in options.items() if "endpoint" in name.lower()]
    named += [os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3")]
    return any(one.startswith("http://") for one in [url, *named])


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].strip()
