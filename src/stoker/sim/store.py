"""A small S3-compatible store on loopback, in a process of its own, with settable latency, bandwidth and faults.

>>> with Store("photos", latency_s=0.03) as store:
...     urllib.request.urlopen(f"{store.url}/cats/one.jpg").read()

Also from the command line: `python -m stoker.sim.store photos --latency-ms 30 --fault 503:rate=0.01`.
"""

import argparse
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, Self

from stoker.errors import MissingExtraError, StokerError, UsageError
from stoker.sim.link import FAULTS, Fault, Link

START_LIMIT_S = 30.0
STOP_LIMIT_S = 5.0
PARENT_LOOK_S = 0.2


class Store:
    """A folder served as an S3 bucket at `url`, until closed or the process that made it ends, in whatever way."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        bucket: str = "data",
        port: int = 0,
        latency_s: float = 0.0,
        jitter_s: float = 0.0,
        connection_bytes_per_s: float | None = None,
        total_bytes_per_s: float | None = None,
        faults: Iterable[Fault | str] = (),
        seed: int = 0,
    ) -> None:
        self.root = Path(root)
        self.bucket = bucket
        parsed = tuple(Fault.parse(fault) if isinstance(fault, str) else fault for fault in faults)
        self.link = Link(latency_s, jitter_s, connection_bytes_per_s, total_bytes_per_s, parsed, seed)
        _check_folder(self.root)
        self._port = port
        self._owner = os.getpid()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Start serving; returns once the store answers."""
        if self._process is not None:
            raise UsageError(f"the store of {self.root} is already running at {self.url}")
        _need_server()
        self._owner = os.getpid()
        # A session of its own: Ctrl-C in the terminal ends the training, which then ends the store, in this order.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stoker.sim.store", *self._arguments()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._port = self._read_port(self._process)
        return self

    def _arguments(self) -> list[str]:
        link = self.link
        arguments = [str(self.root), "--bucket", self.bucket, "--port", str(self._port), "--parent", str(self._owner)]
        arguments += ["--latency-ms", str(link.latency_s * 1e3), "--jitter-ms", str(link.jitter_s * 1e3)]
        if link.connection_bytes_per_s is not None:
            arguments += ["--connection-bytes-per-s", str(link.connection_bytes_per_s)]
        if link.total_bytes_per_s is not None:
            arguments += ["--total-bytes-per-s", str(link.total_bytes_per_s)]
        for fault in link.faults:
            arguments += ["--fault", str(fault)]
        return [*arguments, "--seed", str(link.seed)]

    def _read_port(self, process: "subprocess.Popen[str]") -> int:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_LIMIT_S)
        line = process.stdout.readline() if ready else ""
        if not line.startswith("serving "):
            process.kill()
            _, complaint = process.communicate()
            self._process = None
            why = complaint.strip().rpartition("\n")[2] or f"no answer within {START_LIMIT_S:.0f} s"
            raise UsageError(f"the store of {self.root} did not start: {why}")
        return int(line.rpartition(":")[2].partition("/")[0])

    @property
    def endpoint(self) -> str:
        """What S3 clients call the endpoint: scheme, address and port."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """The bucket's address; an object is at `url/key`."""
        return f"{self.endpoint}/{self.bucket}"

    @property
    def pid(self) -> int | None:
        """The store's process, while it runs."""
        return None if self._process is None else self._process.pid

    def stats(self) -> dict[str, Any]:
        """What it has answered so far: requests by kind, bytes, most in flight at once, faults."""
        with urllib.request.urlopen(f"{self.endpoint}/-/stats", timeout=STOP_LIMIT_S) as answer:  # noqa: S310 (loopback)
            found = json.load(answer)
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        """End the store's process; a forked copy of this object does not."""
        process, self._process = self._process, None
        if process is None or os.getpid() != self._owner:
            return
        process.terminate()
        try:
            process.communicate(timeout=STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_folder(root: Path) -> None:
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder; the store serves the files below one")


def _need_server() -> None:
    for module in ("starlette", "uvicorn"):
        if find_spec(module) is None:
            raise MissingExtraError(module, "ui")


def serve(root: Path, bucket: str, port: int, link: Link, parent: int | None) -> None:
    """Serve in this process until a signal comes, or until `parent` is no longer its parent."""
    _need_server()
    import uvicorn

    from stoker.sim.bucket import Bucket
    from stoker.sim.wire import Wire

    config = uvicorn.Config(
        Wire(bucket, Bucket(root), link),
        log_level="critical",  # a connection that is cut on purpose is no error to log
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=60,  # a reader may pause between epochs and find its connection alive, as on S3
        timeout_graceful_shutdown=1,
    )
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    # asyncio sets this only on sockets made with an explicit protocol; without it an answer waits 40 ms for an ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    print(f"serving {root} at http://127.0.0.1:{listener.getsockname()[1]}/{bucket}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


def _follow(parent: int) -> NoReturn:
    """End with the parent, whatever ended it: an orphan is adopted, so its parent's id changes."""
    while os.getppid() == parent:
        time.sleep(PARENT_LOOK_S)
    os._exit(0)


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"store: {message}. See: python -m stoker.sim.store --help\n")


def _parser() -> argparse.ArgumentParser:
    faults = "; ".join(f"{name}: {meaning}" for name, meaning in FAULTS.items())
    parser = _OneLineParser(
        prog="python -m stoker.sim.store", description="Serve a folder as an S3 bucket on loopback."
    )
    parser.add_argument("root", type=Path, help="folder whose files are the objects")
    parser.add_argument("--bucket", default="data", help="the bucket's name (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8333, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="before each answer starts (default: none)")
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="latency varies by up to this, both ways")
    parser.add_argument("--connection-bytes-per-s", type=float, help="bandwidth of one connection (default: no limit)")
    parser.add_argument("--total-bytes-per-s", type=float, help="bandwidth of all together (default: no limit)")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="KIND:rate=R|nth=N", help=f"may be repeated. {faults}"
    )
    parser.add_argument("--seed", type=int, default=0, help="of jitter and faults (default: %(default)s)")
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of the store."""
    options = _parser().parse_args(arguments)
    try:
        _check_folder(options.root)
        link = Link(
            options.latency_ms / 1e3,
            options.jitter_ms / 1e3,
            options.connection_bytes_per_s,
            options.total_bytes_per_s,
            tuple(Fault.parse(text) for text in options.fault),
            options.seed,
        )
        serve(options.root, options.bucket, options.port, link, options.parent)
    except StokerError as error:
        print(f"store: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (OSError, OverflowError) as error:
        print(f"store: cannot listen on port {options.port}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
