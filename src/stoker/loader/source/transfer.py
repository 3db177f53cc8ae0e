"""Brings objects from a remote store: many requests under way, in the order they are wanted, each verified.

One thread runs the requests, two verify and cache what arrives. `Want` is one object on its way; whoever needs it
waits on it.
"""

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.errors import ChangedError, ClosedError, DataError, StokerError, TimedOutError
from stoker.loader import waits
from stoker.loader.cache import Cache
from stoker.loader.source.counters import Counters
from stoker.loader.source.limit import Limit
from stoker.loader.source.pieces import Listed
from stoker.loader.source.remote import Remote, backoff_s, check_fork

if TYPE_CHECKING:
    from stoker.loader.claims import Claims
    from stoker.loader.segments import Writer

_WATCH_S = 0.02
_GRACE_S = 2.0
"""The store's client ends a request that is too slow; should it not, this is waited on top."""
_HEDGE_SHARE = 0.05
_POLL_S = (0.005, 0.1)
_SETTLERS = 2
_AT_ONCE, _AT_ONCE_BYTES = 16, 1 << 16
"""What one of them takes at once, at most, of what has arrived: small objects cost less together."""
_JOIN_S = 5.0

Prepare = Callable[[int, Any], Any]
"""Row and bytes of a verified object → bytes; raises `DataError` for what it cannot use."""


class Want:
    """One object on its way. Has either `data` (None: it is in the cache) or `error` once it is `done`."""

    __slots__ = (
        "_events",
        "asked",
        "begun_s",
        "claimed",
        "data",
        "done",
        "error",
        "hedged",
        "issued",
        "name",
        "nbytes",
        "row",
        "takers",
        "tries",
    )

    def __init__(self, row: int, nbytes: int) -> None:
        self.row = row
        self.nbytes = nbytes
        self.done = False
        self.data: Any = None
        self.error: BaseException | None = None
        self.issued = False
        self.claimed = False
        self.name = ""
        """In the cache; known when it is claimed."""
        self.tries = 0
        self.begun_s = 0.0
        """When the request under way was sent; 0 if none is."""
        self.asked: set[asyncio.Future[Any]] = set()
        self.hedged = False
        self.takers = 0  # threads that want its data, where they may be several
        self._events: list[threading.Event] = []

    def finish(self, data: Any = None, error: BaseException | None = None) -> None:
        """Wake whoever waits; called once."""
        self.data, self.error = data, error
        with _waking:
            self.done = True
        for event in self._events:
            event.set()

    def sleep(self, event: threading.Event | None = None) -> None:
        """Until it is done, well or badly, or the event is set. Ends: every attempt does, and so does closing."""
        if not self.done:
            event = event or threading.Event()
            with _waking:
                if self.done:
                    return
                self._events.append(event)
            waits.for_event(event)

    def wait(self) -> Any:
        """The object's bytes, or None if it is in the cache."""
        self.sleep()
        if self.error is not None:
            raise self.error
        return self.data


_waking = threading.Lock()
Arrived = queue.SimpleQueue[tuple[Want, Any] | None]
"""Objects whose bodies are here, and None for the end."""


class Transfer:
    """The requests of one stream. `supply` gives the next object to ask for, or None; it is called in the thread.

    Its threads start with the first object that somebody waits for: an epoch that is all in the cache has none.
    """

    def __init__(
        self,
        remote: Remote,
        listed: Listed,
        cache: Cache | None,
        *,
        limit: Limit,
        counters: Counters,
        supply: Callable[[], Want | None],
        prepare: Prepare | None = None,
    ) -> None:
        """`prepare` makes of an object's bytes what is kept and handed out."""
        self._prepare = prepare
        self._remote, self._listed, self._cache = remote, listed, cache
        self._claims: Claims | None = None
        self._writer: Writer | None = None
        self._limit, self._counters = limit, counters
        self._supply = supply
        self._urgent: deque[Want] = deque()
        self._active: set[Want] = set()
        self._arrived: list[Arrived] = [queue.SimpleQueue() for _ in range(_SETTLERS)]
        self._closed = False
        self._starting = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def _start(self) -> asyncio.AbstractEventLoop | None:
        """The loop of the requests; None if it is too late for any. No lock is shared with `close`."""
        with self._starting:
            if self._loop is None and not self._closed:
                check_fork()
                loop = asyncio.new_event_loop()
                if self._cache is not None:
                    self._claims, self._writer = self._cache.claims(), self._cache.writer()
                parts: list[tuple[str, Callable[..., None]]] = [("stoker-remote", self._run)]
                parts += [("stoker-settle", partial(self._settle, arrived)) for arrived in self._arrived]
                self._threads = [
                    threading.Thread(target=run, args=(loop,), name=name, daemon=True) for name, run in parts
                ]
                for thread in self._threads:
                    thread.start()
                self._loop = loop
                if self._closed:
                    self._call(loop, loop.stop)
            return self._loop

    # ---- called from other threads

    def wake(self) -> None:
        """There may be something to ask for."""
        if self._loop is not None:
            self._call(self._loop, self._pump)

    def hurry(self, want: Want) -> None:
        """Somebody waits for an object; ask for it now, whatever the order says."""
        loop = self._start()
        if loop is None or not self._call(loop, self._hurry, want):
            self._give_up(want)

    def _call(self, loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> bool:
        """Have it called in the thread of the requests; False if that has ended."""
        try:
            loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            if not self._closed:
                raise
            return False
        return True

    @staticmethod
    def _give_up(want: Want) -> None:
        if not want.done:
            want.finish(error=ClosedError("the loader was closed while it waited for an object"))

    def close(self, *, join: bool = True) -> None:
        """End all requests; whoever waits is told. Safe to call twice, and from any thread."""
        if not self._closed:
            self._closed = True
            if self._loop is not None:
                self._call(self._loop, self._loop.stop)
        if join and self._loop is not None and threading.current_thread() not in self._threads:
            self._threads[0].join(_JOIN_S)

    # ---- the thread of the requests

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon(self._pump)
        loop.call_later(_WATCH_S, self._watch)
        loop.run_forever()
        for want in self._active:
            self._end(want)
        loop.run_until_complete(asyncio.sleep(0))  # the cancelled requests are told
        loop.close()
        for want in [*self._active, *self._urgent]:
            self._give_up(want)
        for arrived in self._arrived:
            arrived.put(None)
        for thread in self._threads[1:]:
            thread.join()
        if self._claims is not None and self._writer is not None:
            self._writer.close()
            self._claims.close()

    def _pump(self) -> None:
        while not self._closed and len(self._active) < self._limit.now:
            want = self._urgent.popleft() if self._urgent else self._supply()
            if want is None:
                return
            if not want.issued:
                self._issue(want)

    def _hurry(self, want: Want) -> None:
        if not want.issued and not want.done:
            self._urgent.append(want)
            self._pump()

    def _issue(self, want: Want) -> None:
        """Ask for an object, unless it is in the cache by now or another process is bringing it."""
        want.issued = True
        self._active.add(want)
        if self._cache is None or not self._cache.keep[want.row] or self._cache.off is not None:
            self._ask(want)
        else:
            self._claim(want, _POLL_S[0], time.monotonic() + self._remote.timeout_s)

    def _claim(self, want: Want, pause_s: float, until_s: float) -> None:
        """Be the one to download an object, or wait for who is; should that take too long, download it all the same."""
        if want.done:
            return
        assert self._cache is not None
        assert self._claims is not None
        assert self._writer is not None
        want.name = want.name or self._cache.name(want.row)
        want.claimed = self._claims.take(want.name)
        if not want.claimed and time.monotonic() < until_s:
            asyncio.get_running_loop().call_later(pause_s, self._claim, want, min(_POLL_S[1], 2 * pause_s), until_s)
        elif self._cache.came(want.row, self._writer.index_bytes()):
            self._finish(want)
        else:
            self._ask(want)

    def _ask(self, want: Want, *, hedge: bool = False) -> None:
        """Send a request."""
        if self._closed:
            return
        now_s = time.monotonic()
        if not hedge:
            want.begun_s, want.hedged = now_s, False
        self._counters.add("requests")
        answer = asyncio.ensure_future(self._remote.get(self._listed, want.row))
        want.asked.add(answer)
        answer.add_done_callback(partial(self._answered, want, now_s, hedge))

    def _answered(self, want: Want, begun_s: float, hedge: bool, answer: "asyncio.Future[Any]") -> None:
        """The first answer counts; an error counts if no other request is under way."""
        error = None if answer.cancelled() else answer.exception()
        if answer not in want.asked or answer.cancelled():
            return  # another one was first, or time was up
        want.asked.discard(answer)
        if error is not None:
            if not want.asked:
                self._failed(want, error)
            return
        data = answer.result()
        self._end(want)
        now_s = time.monotonic()
        self._limit.done(now_s - begun_s, now_s, wanted=len(self._active) >= self._limit.now)
        self._counters.add("bytes_received", len(data))
        if hedge:
            self._counters.add("hedges_won")
        self._active.discard(want)
        # Small objects go to one thread: two would wait for each other more than they work.
        is_small = self._prepare is None and len(data) < _AT_ONCE_BYTES
        self._arrived[0 if is_small else want.row % _SETTLERS].put((want, data))
        self._pump()

    def _end(self, want: Want) -> None:
        """No request for it is of interest any more."""
        asked, want.asked, want.begun_s = want.asked, set(), 0.0
        for answer in asked:
            answer.cancel()

    def _failed(self, want: Want, error: BaseException) -> None:
        """Ask again, or give up."""
        self._end(want)
        explained, again = self._remote.explain(error, self._listed.address(want.row), want.tries)
        if self._remote.is_throttling(error):
            self._counters.add("throttled")
            self._limit.throttled()
        if isinstance(explained, TimedOutError):
            self._counters.add("timeouts")
            self._limit.throttled()
        if again:
            self._repeat(want)
        else:
            self._finish(want, explained)

    def _repeat(self, want: Want) -> None:
        want.tries += 1
        self._counters.add("retries")
        self._active.add(want)
        asyncio.get_running_loop().call_later(backoff_s(want.tries), self._ask, want)

    def _finish(self, want: Want, error: StokerError | None = None) -> None:
        self._release(want)
        want.finish(error=error)
        self._active.discard(want)
        self._pump()

    def _release(self, want: Want) -> None:
        if want.claimed and self._claims is not None:
            want.claimed = False
            self._claims.release(want.name)

    def _watch(self) -> None:
        """Give slow requests a second one, and end those that should have ended."""
        now_s, hedge_s = time.monotonic(), self._limit.hedge_s()
        for want in list(self._active):
            age_s = now_s - want.begun_s if want.begun_s else 0.0
            if age_s > self._remote.timeout_s + _GRACE_S:
                self._failed(want, TimeoutError("timed out"))
            elif hedge_s is not None and age_s > hedge_s and not want.hedged and self._may_hedge():
                want.hedged = True
                self._counters.add("hedges")
                self._ask(want, hedge=True)
        asyncio.get_running_loop().call_later(_WATCH_S, self._watch)

    def _may_hedge(self) -> bool:
        return self._counters.hedges < 1 + _HEDGE_SHARE * self._counters.requests

    # ---- the threads that verify and cache

    def _settle(self, arrived: Arrived, loop: asyncio.AbstractEventLoop) -> None:
        while some := _next_of(arrived):
            ready = [(want, data) for want, body in some if (data := self._ready(loop, want, body)) is not None]
            kept = [(want.row, data) for want, data in ready if want.claimed]
            if kept and self._cache is not None and self._writer is not None:
                self._cache.write(self._writer, kept)
            for want, data in ready:
                self._release(want)
                want.finish(data)

    def _ready(self, loop: asyncio.AbstractEventLoop, want: Want, body: Any) -> Any:
        """What is kept and handed out of a body; None if it is not the right one, or nothing can be made of it."""
        wrong = self._listed.wrong(want.row, body)
        if wrong is not None:
            self._counters.add("rejected")
            if not self._call(loop, self._distrust, want, wrong):
                self._give_up(want)
            return None
        try:
            return body if self._prepare is None else self._prepare(want.row, body)
        except Exception as error:  # noqa: BLE001  belongs to whoever waits, who would wait for ever
            self._release(want)
            want.finish(error=error)
            return None

    def _distrust(self, want: Want, wrong: DataError) -> None:
        """A body was not the listed one: either the object changed, or the way here spoiled it."""
        self._active.add(want)
        look = asyncio.ensure_future(self._remote.has_changed(self._listed, want.row))
        want.asked.add(look)
        look.add_done_callback(partial(self._looked, want, wrong))

    def _looked(self, want: Want, wrong: DataError, look: "asyncio.Future[ChangedError | None]") -> None:
        if look.cancelled() or look not in want.asked:
            return
        want.asked.discard(look)
        changed = look.result()
        if changed is not None or want.tries >= self._remote.retries:
            self._finish(want, changed or wrong)
        else:
            self._repeat(want)


def _next_of(arrived: Arrived) -> list[tuple[Want, Any]]:
    """What has arrived, a few small objects at once; nothing if it is time to end."""
    found: list[tuple[Want, Any]] = []
    one = arrived.get()
    with suppress(queue.Empty):
        while one is not None:
            found.append(one)
            if len(found) == _AT_ONCE or sum(len(body) for _, body in found) > _AT_ONCE_BYTES:
                return found
            one = arrived.get_nowait()
        if found:  # the end is for the next time
            arrived.put(None)
    return found
