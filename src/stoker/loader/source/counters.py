"""What reading from a store took, counted."""

import threading

from stoker.loader.cache import Cache
from stoker.loader.source.blocks import Ints
from stoker.loader.source.interface import RemoteFigures
from stoker.loader.source.limit import Limit


class Counters:
    """Counts of one source, over all its streams."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = self.bytes_received = self.retries = self.throttled = self.timeouts = 0
        self.rejected = self.hedges = self.hedges_won = self.cache_hits = self.cache_misses = 0

    def add(self, name: str, count: int = 1) -> None:
        """Safe from any thread."""
        with self._lock:
            setattr(self, name, getattr(self, name) + count)


def figures(limit: Limit, counts: Counters, cache: Cache | None, sizes: Ints) -> RemoteFigures:
    """What reading took; `sizes` are those of all that can be asked for."""
    return RemoteFigures(
        requests=counts.requests,
        in_flight_limit=limit.now,
        bytes_received=counts.bytes_received,
        latency_s=limit.quantile(0.5),
        latency_p95_s=limit.quantile(0.95),
        retries=counts.retries,
        throttled=counts.throttled,
        timeouts=counts.timeouts,
        rejected=counts.rejected,
        hedges=counts.hedges,
        hedges_won=counts.hedges_won,
        cache_hits=counts.cache_hits,
        cache_misses=counts.cache_misses,
        cache_bytes=cache.written_bytes if cache else 0,
        cache_rejected=cache.rejected if cache else 0,
        cache_kept_share=None if cache is None else float(sizes[cache.keep].sum() / max(1, sizes.sum())),
        cache_off=cache.off if cache else None,
    )
