"""What a process that makes batches opens and asks for: names, requests, bytes from sockets.

Counted by an audit hook, which C code calls for every `open`; it cannot be taken off again, so it is switched.
"""

import os
import sys
import threading
import time
import zlib
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from stoker.observe.patches import Patches

MOST_NAMES = 100_000
MOST_EXAMPLES = 24
NAMED = {"open": 0, "urllib.Request": 0}
"""Audit events whose first argument names something that is read."""
REQUEST = "http.client.send"
HTTPS_PORT = 443
CODE = (".py", ".pyc", ".so", ".pth")
LIBRARIES = ("/site-packages/", "/dist-packages/", ".so.")
PYTHONS = (sys.prefix, sys.base_prefix)
MAPPED_BY_OTHERS = ("/usr/", "/lib", "/dev/", "[", *PYTHONS, *map(os.path.realpath, PYTHONS))
IGNORED = ("/proc/", "/sys/", "/dev/", "<", "pipe:")


class Counts:
    """Counters of one process; they only grow."""

    def __init__(self) -> None:
        self.on = False
        self.opens = 0
        self.requests = 0
        self.net_bytes = 0
        self.examples: dict[str, None] = {}
        self._names: set[int] = set()
        self._hooked = False
        self._patches = Patches()

    def start(self) -> None:
        """Begin to count."""
        self.on = True
        if not self._hooked:
            self._hooked = True
            sys.addaudithook(self._hear)
        self._watch_sockets()

    def stop(self) -> None:
        """Stop counting, and leave the sockets as they were."""
        self.on = False
        self._patches.restore()

    def forget(self) -> None:
        """A forked child starts from nothing."""
        self._names.clear()

    def read(self) -> tuple[int, ...]:
        """CPU of all threads, opens, different names, requests, bytes received."""
        return time.process_time_ns(), self.opens, len(self._names), self.requests, self.net_bytes

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in NAMED:
            name = args[0]
            if isinstance(name, str) and not name.startswith(IGNORED):
                self.opens += 1
                if len(self._names) < MOST_NAMES:
                    self._names.add(hash(name))
                if event == "open" and len(self.examples) < MOST_EXAMPLES and _is_data(name, args):
                    self.examples[name] = None
        elif event == REQUEST:
            self.requests += 1
            if len(self.examples) < MOST_EXAMPLES and (address := address_of(*args)):
                self.examples[address] = None

    def _watch_sockets(self) -> None:
        socket = import_module("socket").socket
        for name in ("recv", "recv_into"):
            self._patches.set(socket, name, self._receiving(getattr(socket, name)))

    def _receiving(self, original: Any) -> Any:
        def receive(sock: Any, *args: Any) -> Any:
            got = original(sock, *args)
            self.net_bytes += got if isinstance(got, int) else len(got)
            return got

        return receive


def _is_data(name: str, args: tuple[Any, ...]) -> bool:
    """True for what is opened to be read and is no code."""
    flags = args[2] if len(args) > 2 and isinstance(args[2], int) else 0  # noqa: PLR2004
    return not flags & os.O_ACCMODE and not is_code(name)


def is_code(name: str) -> bool:
    """True for programs and what comes with them: libraries, their tables and fonts, also where a link leads there."""
    return name.endswith(CODE) or name.startswith(MAPPED_BY_OTHERS) or any(part in name for part in LIBRARIES)


def address_of(connection: Any, data: Any) -> str | None:
    """What a GET asks for, as one would write it down; None for all else, and where the path alone does not say it.

    A request that is signed as S3's are is one to a bucket: the first part of its path, or of its host on Amazon's own.
    """
    if not isinstance(data, bytes) or not data.startswith(b"GET /"):
        return None
    first, *lines = data.decode("latin-1").split("\r\n")
    path = first.split(" ")[1]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    host = headers.get("host", "")
    if not host or "?" in path:
        return None
    if headers.get("authorization", "").startswith("AWS4"):
        bucket, on_amazon, _ = host.partition(".s3.")
        return f"s3://{bucket}{path}" if on_amazon else f"s3:/{path}"
    scheme = "https" if getattr(connection, "default_port", None) == HTTPS_PORT else "http"
    return f"{scheme}://{host}{path}"


COUNTS = Counts()


def files_read() -> tuple[str, ...]:
    """Some regular files that this process reads, opened while counted or mapped, and addresses that it asks for."""
    addresses = [name for name in COUNTS.examples if "://" in name]
    names = [name for name in COUNTS.examples if "://" not in name]
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) > 5 and "x" not in fields[1]:  # noqa: PLR2004
                names.append(fields[5])
    found = dict.fromkeys(str(Path(name).absolute()) for name in names if not is_code(name))
    return (*(name for name in found if Path(name).is_file()), *addresses)[:MOST_EXAMPLES]


def fingerprint(batch: Any, most_bytes: int = 8 << 20) -> tuple[int, int]:
    """Bytes of all arrays in a batch, and a checksum of what it holds; 0 where nothing could be summed."""
    size = total = 0
    left = [batch]
    seen = 0
    while left and seen < 200_000:  # noqa: PLR2004
        part = left.pop()
        seen += 1
        if hasattr(part, "nbytes"):
            size += int(part.nbytes)
            total = zlib.crc32(_bytes_of(part, most_bytes), total)
        elif isinstance(part, dict):
            left.extend(part.values())
        elif isinstance(part, (list, tuple)):
            left.extend(part)
        elif isinstance(part, (bytes, str)):
            data = part if isinstance(part, bytes) else part.encode(errors="replace")
            size += len(data)
            total = zlib.crc32(data, total)
        elif isinstance(part, (int, float)):
            size += 8
            total = zlib.crc32(str(part).encode(), total)
        elif hasattr(part, "__dict__"):
            left.extend(vars(part).values())
    return size, total


def _bytes_of(part: Any, most_bytes: int) -> bytes:
    try:
        array = part.detach().cpu().contiguous().reshape(-1).numpy() if hasattr(part, "detach") else part.reshape(-1)
        count = max(most_bytes // max(array.itemsize, 1), 1)
        return bytes(array[:count].tobytes())
    except Exception:  # noqa: BLE001  a tensor without plain memory: sparse, nested, half a dozen others
        return b""


def threads() -> int:
    """Threads of this process that Python knows and those that it does not."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return threading.active_count()
