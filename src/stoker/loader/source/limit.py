"""How many requests may be under way at once: as many as make it faster, fewer when the store says so."""

from collections import deque

START = 16
MOST = 256
_LEAST = 4
_GROWS = 1.5
_SHRINKS = 0.7
_BETTER = 1.08
"""A round with more requests in flight must bring this much more, or the limit goes back."""
_PROBE_ROUNDS = 8
"""After so many rounds without a change, more is tried again: the store, or the machine, may have changed."""
_LATENCIES = 256
_HEDGE_LEAST_S = 0.05
_HEDGE_KNOWN = 32


class Limit:
    """Finds the number of requests in flight. Not locked: one thread asks and tells."""

    def __init__(self, fixed: int | None = None, *, hedge: bool = True) -> None:
        self._fixed = fixed
        self._hedges = hedge
        self.now = fixed or START
        self._latencies: deque[float] = deque(maxlen=_LATENCIES)
        self._begun_s: float | None = None
        self._done = 0
        self._full = True
        self._rate = 0.0
        self._before = self.now
        self._calm = 0
        self._hedge_s: float | None = None

    def done(self, latency_s: float, now_s: float, *, wanted: bool) -> None:
        """A request was answered; `wanted` says that more would be under way if the limit allowed it."""
        self._latencies.append(latency_s)
        self._full &= wanted
        if self._begun_s is None:
            self._begun_s = now_s
            return
        self._done += 1
        if self._done >= max(_HEDGE_KNOWN, 2 * self.now):
            self._hedge_s = self._tail_s() if self._hedges else None
            if self._fixed is None and self._full:
                self._review(self._done / max(1e-6, now_s - self._begun_s))
            self._begun_s, self._done, self._full = now_s, 0, True

    def _review(self, rate: float) -> None:
        grew = self.now > self._before
        better = rate > self._rate * _BETTER
        before, self._before = self._before, self.now
        if self._rate == 0.0 or (grew and better) or self._calm >= _PROBE_ROUNDS:
            self.now, self._calm = min(MOST, int(self.now * _GROWS) + 1), 0
        elif grew:
            self.now = self._before = before
        else:
            self._calm += 1
        self._rate = rate if not grew or better else self._rate

    def throttled(self) -> None:
        """The store asks for fewer requests."""
        if self._fixed is None:
            self.now = self._before = max(_LEAST, int(self.now * _SHRINKS))
            self._begun_s, self._done, self._full, self._rate, self._calm = None, 0, True, 1e-9, 0

    def _tail_s(self) -> float:
        """When a request is so late that a second one will probably be first."""
        ordered = sorted(self._latencies)
        return max(_HEDGE_LEAST_S, 2 * ordered[int(0.95 * len(ordered))])

    def hedge_s(self) -> float | None:
        """The age at which a request gets a second one; None while too little is known."""
        return self._hedge_s

    def quantile(self, share: float) -> float | None:
        """Of the latest latencies."""
        ordered = sorted(self._latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
