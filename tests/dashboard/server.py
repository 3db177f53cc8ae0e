"""The real program: `stoker ui` in a process of its own."""

import http.client
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

PATIENCE_S = 90.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str


class Server:
    """A dashboard over one `.stoker/`."""

    def __init__(self, home: Path, *words: str) -> None:
        command = [sys.executable, "-m", "stoker", "ui", "--port", "0", "--home", str(home), *words]
        self.process = subprocess.Popen(command, cwd=home.parent, stderr=subprocess.PIPE, text=True)
        self._said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.said = ""
        while (found := re.search(r"(http://[\d.]+:\d+)(/[\w-]+)/", self.said)) is None:
            self.said += self._said.get(timeout=PATIENCE_S)
        self.origin, self.root = found[1], found[2]
        self.url = f"{self.origin}{self.root}/"

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.put(line)
        self._said.put("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def stop(self) -> int:
        """Ctrl-C, as a terminal sends it."""
        os.kill(self.process.pid, signal.SIGINT)
        code = self.process.wait(PATIENCE_S)
        while (line := self._said.get(timeout=PATIENCE_S)) != "":
            self.said += line
        return code

    def get(self, path: str, *, host: str | None = None, method: str = "GET", bare: bool = False) -> Answer:
        """Ask for a path below the root, or with `bare` for any path."""
        place = urlsplit(self.origin)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
        try:
            connection.putrequest(method, path if bare else f"{self.root}{path}", skip_host=True)
            if host != "":
                connection.putheader("Host", host or place.netloc)
            connection.endheaders()
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read().decode("utf-8", "replace"))
        finally:
            connection.close()

    @contextmanager
    def events(self, path: str) -> Iterator[http.client.HTTPResponse]:
        """A stream that stays open."""
        place = urlsplit(self.origin)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", f"{self.root}{path}")
            with connection.getresponse() as stream:
                yield stream
        finally:
            connection.close()
