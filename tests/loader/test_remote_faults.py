"""What a bad store does: each fault is retried and counted, or named with its object. Nothing wrong is delivered."""

import contextlib
import http.server
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

import stoker
from loader.kept import used_bytes
from loader.sources import SIDE, access, check, pictures, png
from stoker import errors
from stoker.loader.front import Loader
from stoker.loader.stats import Stats
from stoker.sim.store import Store

ROWS = 60


def serve(tmp_path: Path, *faults: str, **link: Any) -> Store:
    pictures(tmp_path / "bucket", [20, 40])
    return Store(tmp_path / "bucket", faults=faults, **link)


def opened(store: Store, **how: Any) -> Any:
    how = {"timeout_s": 20, "retries": 8} | how
    return stoker.open(f"s3://{store.bucket}/", size=SIDE, store_options=access(store), **how)


def epoch(source: Any, **how: Any) -> tuple[list[int], Stats]:
    with Loader(source, 8, True, **how) as loader:
        return sorted(i for batch in loader for i in check(batch)), loader.stats()


@pytest.mark.parametrize(("fault", "counted"), [("500", "retries"), ("503", "throttled"), ("cut", "retries")])
def test_a_burst_of_errors_is_retried_and_counted(tmp_path: Path, fault: str, counted: str) -> None:
    with serve(tmp_path, f"{fault}:rate=0.2") as store:
        got, stats = epoch(opened(store))
        struck = store.stats()["faults"][fault]
    assert got == list(range(ROWS))
    assert struck > 0
    assert stats.remote is not None
    assert getattr(stats.remote, counted) >= 1
    assert stats.remote.retries >= 1


@pytest.mark.parametrize("fault", ["truncate", "corrupt"])
def test_a_wrong_body_is_never_delivered_and_asked_for_again(tmp_path: Path, fault: str) -> None:
    with serve(tmp_path, f"{fault}:rate=0.2") as store:
        got, stats = epoch(opened(store, cache=tmp_path / "cache"))
    assert got == list(range(ROWS))
    assert stats.remote is not None
    assert stats.remote.rejected == stats.remote.retries > 0
    again, stats = epoch(opened(store, cache=tmp_path / "cache"))  # the store is gone: what was cached is right
    assert again == got
    assert stats.remote is not None
    assert (stats.remote.requests, stats.remote.cache_rejected) == (0, 0)


@pytest.mark.parametrize(
    ("fault", "error", "reason"),
    [
        ("500", errors.RemoteError, "after 3 attempts: 500 InternalError"),
        ("503", errors.RemoteError, "after 3 attempts: 503 SlowDown"),
        ("cut", errors.UnreachableError, "after 3 attempts"),
        ("truncate", errors.TruncatedError, "bytes arrived"),
        ("corrupt", errors.ChecksumError, "its MD5 is"),
    ],
)
def test_a_fault_that_stays_is_named_with_its_object(
    tmp_path: Path, fault: str, error: type[Exception], reason: str
) -> None:
    with (
        serve(tmp_path, f"{fault}:rate=1") as store,
        pytest.raises(error, match=rf"s3://data/c00\d/\d+\.png: .*{reason}"),
    ):
        epoch(opened(store, retries=2))


def test_skip_leaves_out_bad_objects_and_lists_them(tmp_path: Path) -> None:
    with serve(tmp_path) as store:
        source = opened(store)
        (store.root / "c000" / "00003.png").unlink()
        (store.root / "c001" / "00030.png").write_bytes(b"\x89PNG nonsense".ljust(len(png(30)), b"!"))
        got, stats = epoch(source, on_error="skip")
    assert got == [i for i in range(ROWS) if i not in (3, 30)]
    assert stats.skipped_rows == 2
    assert {Path(one.path).name: one.reason[:14] for one in stats.skipped} == {
        "00003.png": "the object is ",
        "00030.png": "changed since ",
    }


def test_an_object_that_changed_since_the_listing_is_named_and_relist_takes_it(tmp_path: Path) -> None:
    with serve(tmp_path) as store:
        how = {"cache": tmp_path / "cache"}
        source = opened(store, **how)
        (store.root / "c001" / "00030.png").write_bytes(png(130))
        with pytest.raises(errors.ChangedError, match=r"00030\.png: changed since it was listed.*relist=True"):
            epoch(source)
        with pytest.raises(errors.ChangedError):
            epoch(opened(store, **how))  # the manifest still says otherwise
        (store.root / "c001" / "00030.png").write_bytes(png(30))
        assert epoch(opened(store, **how, relist=True))[0] == list(range(ROWS))


def test_a_cached_object_that_changed_in_the_store_is_replaced_after_a_new_listing(tmp_path: Path) -> None:
    with serve(tmp_path) as store:
        how = {"cache": tmp_path / "cache"}
        epoch(opened(store, **how))
        path = store.root / "c001" / "00030.png"
        path.write_bytes(png(31))
        (store.root / "c001" / "00031.png").unlink()
        with Loader(opened(store, **how, relist=True), 8) as loader:
            seen = {key: image for batch in loader for key, image in zip(batch["key"], batch["image"], strict=True)}
        assert seen["c001/00030.png"][0, 0, 0] == 31
        assert "c001/00031.png" not in seen


def test_an_object_that_vanishes_in_mid_epoch_is_named(tmp_path: Path) -> None:
    with serve(tmp_path) as store:
        source = opened(store, requests=2)
        with Loader(source, 2) as loader:
            batches = iter(loader)
            next(batches)
            (store.root / "c001" / "00059.png").unlink()
            with pytest.raises(errors.VanishedError, match=r"00059\.png: the object is gone"):
                list(batches)


def test_an_empty_object_and_a_corrupt_one_are_named(tmp_path: Path) -> None:
    with serve(tmp_path) as store:
        (store.root / "c000" / "00007.png").write_bytes(b"")
        with pytest.raises(errors.EmptyFileError, match=r"c000/00007\.png: the object is empty"):
            epoch(opened(store))
        assert epoch(opened(store, on_error="skip"))[0] == [i for i in range(ROWS) if i != 7]
        (store.root / "c000" / "00007.png").write_bytes(b"\xff\xd8\xff\xe0 not much of a picture")
        with pytest.raises(errors.CorruptError, match=r"c000/00007\.png: cannot be decoded"):
            epoch(opened(store))


def test_an_unknown_host_and_a_closed_port_are_named_and_end(tmp_path: Path) -> None:
    with serve(tmp_path) as store:
        source = opened(store, retries=1)
    with pytest.raises(errors.UnreachableError, match=r"c00\d/\d+\.png: the connection failed \(after 2 attempts"):
        epoch(source)
    keys = {"region": "x", "access_key_id": "a", "secret_access_key": "b"}
    for endpoint, said in (
        ("http://no-such-host.invalid", "the host is unknown"),
        (store.endpoint, "connection failed"),
    ):
        with pytest.raises(errors.UnreachableError, match=rf"s3://data/: .*{said}"):
            stoker.open("s3://data/", size=SIDE, retries=1, store_options={"endpoint": endpoint, **keys})


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    taken.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for one in taken:
            one.close()


def test_a_store_that_never_answers_ends_with_a_time_out(silent: str, tmp_path: Path) -> None:
    options = {"endpoint": silent, "region": "x", "access_key_id": "a", "secret_access_key": "b"}
    how: dict[str, Any] = {"size": SIDE, "timeout_s": 0.3, "retries": 1}
    with pytest.raises(errors.TimedOutError, match=r"no answer within 0\.3 s \(after 2 attempts"):
        stoker.open("s3://data/", **how, store_options=options)
    with serve(tmp_path) as store:
        opened(store, cache=tmp_path / "cache")
    # The listing is known; now every read hangs.
    source = stoker.open("s3://data/", **how, store_options=options, cache=tmp_path / "cache")
    with pytest.raises(errors.TimedOutError, match=r"\.png: no answer within"):
        epoch(source)
    figures = source.remote()
    assert figures is not None
    assert figures.timeouts > 0


def test_expired_and_missing_credentials_are_named_at_once(tmp_path: Path) -> None:
    """A tiny server answers as S3 does when a token is too old."""
    body = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    answer = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve_one() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer % (len(body), body))

        thread = threading.Thread(target=serve_one)
        thread.start()
        options = {
            "endpoint": f"http://127.0.0.1:{listener.getsockname()[1]}",
            "region": "x",
            "access_key_id": "a",
            "secret_access_key": "b",
            "session_token": "old",
        }
        with pytest.raises(errors.AccessError, match=r"s3://data/: the credentials have expired \(400 ExpiredToken\)"):
            stoker.open("s3://data/", size=SIDE, store_options=options)
        thread.join()


def test_a_bucket_that_is_not_there_and_one_without_images(tmp_path: Path) -> None:
    with serve(tmp_path) as store:
        with pytest.raises(errors.NoDataError, match=r"s3://other/: there is no such bucket"):
            stoker.open("s3://other/", size=SIDE, store_options=access(store))
        with pytest.raises(errors.NoDataError, match=r"no image is below s3://data/nothing/"):
            stoker.open("s3://data/nothing/", size=SIDE, store_options=access(store))


def test_closing_in_mid_request_returns_at_once_and_leaves_no_thread(tmp_path: Path) -> None:
    with serve(tmp_path, latency_s=30) as store:
        with serve_listing(store) as source:
            loader = Loader(source, 8)
            seen: list[BaseException] = []

            def wait() -> None:
                try:
                    next(iter(loader))
                except errors.ClosedError as error:
                    seen.append(error)

            waiting = threading.Thread(target=wait)
            waiting.start()
            time.sleep(0.3)
            begin = time.monotonic()
            loader.close()
            waiting.join(10)
            assert seen
            assert time.monotonic() - begin < 10  # far below the 30 s that the answer takes
        names = {thread.name.split("_")[0] for thread in threading.enumerate()}
        assert not names & {"stoker-remote", "stoker-settle", "stoker-decode", "stoker-fetch"}


class serve_listing:  # noqa: N801  reads as a function
    """A source whose listing came from elsewhere, so that only its reads meet the slow store."""

    def __init__(self, store: Store) -> None:
        from stoker.loader.source.decode import Decoder
        from stoker.loader.source.images import ImageSource
        from stoker.loader.source.labels import from_directories
        from stoker.loader.source.open_images import list_folder
        from stoker.loader.source.remote import Remote

        manifest = list_folder(store.root)
        remote = Remote("s3://data/", options=access(store))
        self.source = ImageSource(
            manifest, *from_directories(manifest), decoder=Decoder((SIDE, SIDE), None, flip=False), remote=remote
        )

    def __enter__(self) -> Any:
        return self.source

    def __exit__(self, *_: object) -> None:
        self.source.close()


def test_a_slow_tail_gets_a_second_request(tmp_path: Path) -> None:
    """The 50th read takes far longer than the others; a hedge overtakes it."""
    stuck = threading.Event()
    with serve(tmp_path) as store, Slow(store, nth=50, stuck=stuck) as proxy:
        options = access(store) | {"endpoint": proxy.endpoint}
        source = stoker.open("s3://data/", size=SIDE, store_options=options, requests=4)
        got, stats = epoch(source)
    assert got == list(range(ROWS))
    assert stuck.is_set()
    assert stats.remote is not None
    assert stats.remote.hedges_won >= 1
    assert stats.remote.timeouts == 0


class Slow:
    """Passes connections on to a store, and holds the answer to one request back for good."""

    def __init__(self, store: Store, *, nth: int, stuck: threading.Event) -> None:
        self._target = int(store.endpoint.rpartition(":")[2])
        self._nth, self._stuck = nth, stuck
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._requests = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._open += [client, server]
            for way in ((client, server, True), (server, client, False)):
                self._threads.append(threading.Thread(target=self._pass, args=way))
                self._threads[-1].start()

    def _pass(self, here: socket.socket, there: socket.socket, count: bool) -> None:
        try:
            while data := here.recv(1 << 16):
                if count and b"GET /data/c" in data:
                    with self._lock:
                        self._requests += 1
                        if self._requests == self._nth:
                            self._stuck.set()
                            return
                there.sendall(data)
        except OSError:
            return

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in [self._listener, *self._open]:
            one.close()


class _Plain(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A plain web server over tmp_path/web, which cannot list."""
    (tmp_path / "web").mkdir()
    handler = partial(_Plain, directory=str(tmp_path / "web"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_tables_of_a_web_server_share_a_cache_and_keep_what_it_holds(web: str, tmp_path: Path) -> None:
    pictures(tmp_path / "web", [6])
    keys = [f"c000/{row:05}.png" for row in range(6)]
    train, more = dict.fromkeys(keys[:4], 0), dict.fromkeys(keys[2:], 0)
    asked = []
    for table in (train, more, train, more):
        seen, stats = epoch(stoker.open(web, size=SIDE, labels=table, cache=tmp_path / "cache", hedge=False))
        assert seen == [int(key[5:10]) for key in table]
        assert stats.remote is not None
        asked.append(stats.remote.requests)
    assert asked == [4, 2, 0, 0]
    with pytest.raises(errors.RemoteError):  # the tables' keys are not all that is there
        stoker.open(web, size=SIDE, cache=tmp_path / "cache", retries=0)


def test_tables_of_a_web_server_share_one_budget(web: str, tmp_path: Path) -> None:
    (tmp_path / "web" / "c000").mkdir()
    for row in range(6):  # 300 kB each: the budget holds three
        (tmp_path / "web" / "c000" / f"{row:05}.png").write_bytes(png(row) + bytes(300_000))
    for rows in (range(3), range(3, 6), range(3)):
        table = {f"c000/{row:05}.png": 0 for row in rows}
        source = stoker.open(web, size=SIDE, labels=table, cache=tmp_path / "cache", cache_bytes="1MiB")
        assert epoch(source)[0] == list(rows)
    assert 0 < used_bytes(tmp_path / "cache") <= 1 << 20
