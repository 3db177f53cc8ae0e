"""A real pseudo-terminal of a chosen size, and what a person would see on it."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import pyte

PATIENCE_S = 120.0
NOTICED_S = 15.0
"""After this, Ctrl-C was not noticed: torch frees shared memory in finalizers, and there Python drops exceptions."""


class Terminal:
    """A program on a terminal. `raw` is every byte it wrote, `screen` what stands there now."""

    def __init__(
        self, words: Sequence[str], cwd: Path, *, columns: int, rows: int = 24, env: Mapping[str, str] | None = None
    ) -> None:
        self.raw = b""
        self.screen = pyte.HistoryScreen(columns, rows, history=5000)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", **(env or {})}

        def own_the_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            words,
            cwd=cwd,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=own_the_terminal,  # noqa: PLW1509
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._ours)

    def lines(self) -> list[str]:
        """What stands on the screen."""
        return [line.rstrip() for line in self.screen.display]

    def all_lines(self) -> list[str]:
        """Also what has scrolled away."""
        columns = self.screen.columns
        above = ["".join(row[i].data for i in range(columns)).rstrip() for row in self.screen.history.top]
        return [*above, *self.lines()]

    def until(self, seen: Callable[[list[str]], bool]) -> list[str]:
        """Read until the screen shows what is waited for."""
        deadline = time.monotonic() + PATIENCE_S
        while not seen(self.lines()):
            assert time.monotonic() < deadline, "\n".join(self.lines())
            assert self._read(), "it ended: " + "\n".join(self.all_lines())
        return self.lines()

    def to_the_end(self) -> int:
        """Read until the program ends; its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < deadline, "\n".join(self.lines())
        return self.process.wait(PATIENCE_S)

    def interrupt(self) -> int:
        """Ctrl-C, and again if it was not noticed; the exit code."""
        self.type(b"\x03")
        until = time.monotonic() + NOTICED_S
        while time.monotonic() < until:
            if not self._read():
                return self.process.wait(PATIENCE_S)
        self.type(b"\x03")
        return self.to_the_end()

    def resize(self, columns: int, rows: int) -> None:
        """As if somebody pulled at a corner."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def type(self, text: bytes) -> None:
        """As if somebody typed it."""
        os.write(self._ours, text)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 0.2)[0]:
            return True
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the last one has closed it
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C of a program without a terminal, and again if it was not noticed."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(NOTICED_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)


def stoker(*words: str) -> list[str]:
    """The real program."""
    return [sys.executable, "-m", "stoker", *words]
