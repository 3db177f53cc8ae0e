"""The addresses. Every one is read-only; a run is found by its exact name in the ledger or not at all."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from stoker.dashboard import pages
from stoker.dashboard.guard import Application, Guard
from stoker.dashboard.readers import Readers
from stoker.dashboard.shelf import Entry, Shelf, Sources
from stoker.report import page as report_page

LIVE_S, LIST_S = 1.0, 2.0
"""How often a live run and the list are looked at for those who watch."""
BEAT_S = 15.0
"""A word in between, so that a browser that is gone is noticed."""
TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}
Stopping = Callable[[], bool]


def create(sources: Sources, token: str, stopping: Stopping = lambda: False) -> Application:
    """The whole dashboard, behind its guard."""
    desk = _Desk(sources, stopping)
    routes = [
        Route("/", desk.runs),
        Route("/events", desk.list_events),
        Route("/run/{run}", desk.run),
        Route("/run/{run}/events", desk.run_events),
        Route("/run/{run}/ready", desk.ready),
        Route("/compare", desk.compare),
        Route("/data", desk.data),
        Route("/static/{name}", desk.static),
    ]
    handlers: dict[Any, Any] = {404: desk.missing, 500: desk.failed}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token)


class _Desk:
    """Answers requests."""

    def __init__(self, sources: Sources, stopping: Stopping) -> None:
        self._shelf = Shelf(sources.ledger)
        self._readers = Readers(sources)
        self._compare = sources.compare
        self._stopping = stopping

    # ---- the list

    def runs(self, request: Request) -> Response:
        """All runs and decisions."""
        entries, notice = self._shelf.entries()
        return HTMLResponse(pages.runs(_root(request), entries, notice, self._shelf.home))

    async def list_events(self, _: Request) -> Response:
        """New runs, and runs whose state has changed."""
        return _stream(self._list_changes())

    async def _list_changes(self) -> AsyncIterator[str]:
        known: list[dict[str, str]] | None = None
        while not self._stopping():
            entries, _ = await run_in_threadpool(self._shelf.entries)
            rows = await run_in_threadpool(pages.listing, entries)
            if rows != known:
                before = {one["run"]: one["html"] for one in known or []}
                changed = [one for one in rows if before.get(one["run"]) != one["html"]]
                yield _event("runs", {"order": [one["run"] for one in rows], "rows": changed if known else rows})
                known = rows
            yield ":\n\n"
            await self._pause(LIST_S)

    # ---- one run

    async def run(self, request: Request) -> Response:
        """One run: live, ended, a decision, or why it cannot be shown."""
        entry = await run_in_threadpool(self._shelf.find, request.path_params["run"])
        if entry is None:
            return self._absent(request)
        return await run_in_threadpool(self._run, _root(request), entry)

    def _run(self, root: str, entry: Entry) -> Response:
        if entry.directory is None:
            return HTMLResponse(pages.message(root, entry.run, f"This run cannot be shown: {entry.trouble}."), 410)
        try:
            return HTMLResponse(self._shown(root, entry, entry.directory))
        except Exception as error:  # noqa: BLE001  a broken record is shown as broken, whatever is wrong with it
            detail = f"{type(error).__name__}: {error}"
            return HTMLResponse(pages.message(root, entry.run, "The record of this run is broken.", detail), 422)

    def _shown(self, root: str, entry: Entry, directory: Path) -> str:
        if entry.kind == "decision":
            return pages.decision(root, entry)
        if entry.kind == "tuning":
            return pages.tuning(root, entry, self._shelf.trials(entry.run))
        if entry.is_live:
            return pages.live(root, entry, self._readers.live(directory))
        report = self._readers.reports.ready(directory)
        if report is None:
            working = f"{root}/run/{quote(entry.run, safe='')}/ready"
            return pages.message(root, entry.run, "Reading the run …", _weight(directory), working=working)
        return pages.ended(root, entry, *report)

    def ready(self, request: Request) -> Response:
        """Answers once the report of a run can be shown; a long run takes a while."""
        entry = self._shelf.find(request.path_params["run"])
        if entry is None or entry.directory is None:
            return self._absent(request)
        try:
            self._readers.reports.get(entry.directory)
        except Exception as error:  # noqa: BLE001  said on the page
            detail = f"{type(error).__name__}: {error}"
            return Response(f"The record of this run is broken. {detail}", 422, media_type="text/plain")
        return Response("ready", media_type="text/plain")

    async def run_events(self, request: Request) -> Response:
        """What changes while a run goes on."""
        entry = await run_in_threadpool(self._shelf.find, request.path_params["run"])
        if entry is None or entry.directory is None:
            return self._absent(request)
        return _stream(self._changes(entry.directory))

    async def _changes(self, directory: Path) -> AsyncIterator[str]:
        from stoker.report.live_page import chart_rows

        before: dict[str, Any] = {}
        while not self._stopping():
            try:
                seen = await run_in_threadpool(self._readers.live, directory)
                parts = await run_in_threadpool(pages.parts, seen)
            except Exception as error:  # noqa: BLE001  the directory may vanish, a record may be torn
                yield _event("broken", {"text": f"{type(error).__name__}: {error}"})
                return
            changed = {name: html for name, html in parts.items() if before.get(name) != html}
            yield _event("live", {"parts": changed, "rows": chart_rows(seen)})
            if seen.state in ("ended", "lost"):
                yield _event("over", {"state": seen.state})
                return
            before = dict(parts)
            await self._pause(LIVE_S)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the server."""
        for _ in range(round(seconds / 0.1)):
            if self._stopping():
                return
            await asyncio.sleep(0.1)

    # ---- two runs, data sets, and what pages need

    def compare(self, request: Request) -> Response:
        """Two runs side by side."""
        root, names = _root(request), request.query_params.getlist("run")
        if len(names) != 2:  # noqa: PLR2004
            said = f"{len(names)} runs were chosen; choose two in the list."
            return HTMLResponse(pages.message(root, "Compare", said), 400)
        sides = [self._shelf.find(name) for name in reversed(names)]  # the list is newest first: A is the older one
        directories = [side.directory for side in sides if side is not None and side.directory is not None]
        if len(directories) != 2:  # noqa: PLR2004
            return HTMLResponse(pages.message(root, "Compare", "One of these runs cannot be read."), 404)
        try:
            found = self._compare(directories[0], directories[1])
        except Exception as error:  # noqa: BLE001  a broken record is said to be broken
            detail = f"{type(error).__name__}: {error}"
            return HTMLResponse(pages.message(root, "Compare", "These two cannot be compared.", detail), 422)
        return HTMLResponse(pages.compared(root, found))

    def data(self, request: Request) -> Response:
        """Measured data sets."""
        return HTMLResponse(pages.data(_root(request), *self._shelf.benches()))

    def static(self, request: Request) -> Response:
        """Our own files, by name from a closed list."""
        name = request.path_params["name"]
        if name == "vega.js":
            text = report_page.library(self._shelf.home)
        elif name in ("page.css", "page.js"):
            text = report_page.asset(name)
        elif name in ("ui.css", "ui.js"):
            text = (pages.HERE / "static" / name).read_text(encoding="utf-8")
        else:
            return self._absent(request)
        headers = {"cache-control": "private, max-age=3600"} if name == "vega.js" else {}
        return Response(text, headers=headers, media_type=TYPES[Path(name).suffix])

    def _absent(self, request: Request) -> Response:
        return HTMLResponse(pages.message(_root(request), "Not here", "There is no such run or page."), 404)

    def missing(self, request: Request, _: Exception) -> Response:
        """An address that leads nowhere."""
        return self._absent(request)

    def failed(self, request: Request, error: Exception) -> Response:
        """A fault of ours: said, and the server goes on."""
        detail = f"{type(error).__name__}: {error}"
        return HTMLResponse(pages.message(_root(request), "A fault", "This page could not be made.", detail), 500)


def _root(request: Request) -> str:
    return str(request.scope["root_path"])


def _stream(changes: AsyncIterator[str]) -> StreamingResponse:
    return StreamingResponse(changes, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _event(name: str, value: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"


def _weight(directory: Path) -> str:
    """How much there is to read."""
    from stoker.report.units import size

    try:
        total = sum(path.stat().st_size for path in directory.iterdir())
    except OSError:
        return ""
    return f"{size(total)} of records."
