"""`stoker.watch`: the doctor's eyes inside a script or a notebook, where zero-code is not wanted."""

import subprocess
import sys
import time
from _thread import get_ident
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stoker.observe.child import Observer
from stoker.observe.files import write
from stoker.observe.meters import machine
from stoker.observe.options import Options
from stoker.observe.recorder import clock
from stoker.records.codec import encode
from stoker.records.observed import ARG, Kind

RUNS = Path(".stoker") / "runs"


class watch:  # noqa: N801  used like a function
    """Record what happens inside a `with` block; everything touched is restored when it ends.

        with stoker.watch("my run") as w:
            for batch in w(loader): ...
        w.report()

    Epochs stay whole and checkpoints go where they belong. `w(loader)` gives any iterable a name as a loader; a torch
    DataLoader is seen without it.
    """

    def __init__(self, name: str = "watch") -> None:
        self.name = name
        self.directory = RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{_plain(name)}"
        self._observer: Observer | None = None
        self._loaders = 0

    def __enter__(self) -> Self:
        if self._observer is not None:
            raise RuntimeError("this watch is already open; make a new one for a second block")
        _make(self)
        options = Options(whole=True)
        options.write(self.directory)
        about = {"command": [self.name], "started_s": time.time(), "start_ns": clock(), "whole": True}
        write(self.directory, "run.json", {**about, "machine": encode(machine())})
        self._observer = Observer(self.directory.resolve(), options)
        self._observer.recorder.home[0] = get_ident()
        self._observer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._observer is None:
            return
        self._observer.finish()
        self._observer = None
        write(self.directory, "end.json", {"end_ns": clock(), "code": 0 if kind is None else 1})

    def __call__(self, loader: Iterable[Any]) -> Iterable[Any]:
        """The same loader, its waits written down."""
        if self._observer is None or any(base.__name__ == "DataLoader" for base in type(loader).__mro__):
            return loader
        self._loaders += 1
        return self._timed(loader, 100 + self._loaders)

    def report(self) -> None:
        """Print what was seen, as `stoker report` does."""
        sys.stdout.flush()
        subprocess.run([sys.executable, "-m", "stoker", "report", str(self.directory)], check=False)

    def _timed(self, loader: Iterable[Any], number: int) -> Iterator[Any]:
        assert self._observer is not None
        put = self._observer.recorder.put
        self._observer.recorder.note("loader", **_facts(number, loader))
        for code in (Kind.ITER << 1, Kind.ITER << 1 | 1):
            put(clock())
            put(code | number << ARG)
        iterator = iter(loader)
        while True:
            put(clock())
            put(Kind.NEXT << 1 | number << ARG)
            try:
                batch = next(iterator)
            except StopIteration:
                put(clock())
                put(Kind.EXHAUSTED << 1 | 1 | number << ARG)
                return
            put(clock())
            put(Kind.NEXT << 1 | 1 | number << ARG)
            yield batch


def _make(one: watch) -> None:
    """A directory that nobody has yet."""
    base = one.directory
    for number in range(2, 1000):
        try:
            one.directory.mkdir(parents=True)
        except FileExistsError:
            one.directory = base.with_name(f"{base.name}-{number}")
        else:
            return


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)[:40] or "watch"


def _facts(number: int, loader: Iterable[Any]) -> dict[str, Any]:
    length = len(loader) if isinstance(loader, Sized) else None
    kind = type(loader).__name__
    nothing = {"samples": None, "batch_size": None, "prefetch_factor": None, "start_method": None}
    plain = {"num_workers": 0, "pin_memory": False, "persistent_workers": False, "shuffled": False}
    return {
        "loader": number,
        "kind": kind,
        "dataset": kind,
        "length": length,
        **nothing,
        **plain,
        "file": "",
        "line": 0,
    }
