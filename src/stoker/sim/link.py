"""What lies between a reader and the simulated store: latency, bandwidth, faults. Plain numbers, nothing that runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from stoker.errors import UsageError

FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "500": "the answer is an InternalError",
        "503": "the answer is SlowDown, as S3 gives under load",
        "cut": "the connection closes half-way through the body",
        "truncate": "the body ends early and its Content-Length agrees: only size or checksum can tell",
        "corrupt": "one byte of the body is wrong while size and ETag are right: only the checksum can tell",
    }
)


@dataclass(frozen=True)
class Fault:
    """One way for a read of an object to fail: by chance (`rate`), or exactly the `nth` read, counted from 1.

    >>> Fault.parse("503:rate=0.05"), Fault.parse("cut:nth=3")
    """

    kind: str
    rate: float = 0.0
    nth: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in FAULTS:
            raise UsageError(f"no fault is called {self.kind!r}; known: {', '.join(FAULTS)}")
        if not 0 <= self.rate <= 1:
            raise UsageError(f"a fault's rate is {self.rate}; expected a share between 0 and 1")
        if self.nth is not None and self.nth < 1:
            raise UsageError(f"a fault's nth is {self.nth}; expected 1 or more, the first read being 1")
        if (self.nth is None) == (self.rate == 0):
            raise UsageError(f"fault {self.kind} needs either a rate above 0 or an nth, as in {self.kind}:rate=0.01")

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """A fault from the command line's `kind:rate=0.05` or `kind:nth=3`."""
        kind, _, when = text.partition(":")
        name, _, value = when.partition("=")
        try:
            if name == "rate":
                return cls(kind, rate=float(value))
            if name == "nth":
                return cls(kind, nth=int(value))
        except ValueError:
            pass
        raise UsageError(f"fault {text!r} is not understood; expected kind:rate=0.05 or kind:nth=3")

    def __str__(self) -> str:
        return f"{self.kind}:nth={self.nth}" if self.nth is not None else f"{self.kind}:rate={self.rate}"


@dataclass(frozen=True)
class Link:
    """The way to the store. Bandwidth of None means as fast as loopback goes."""

    latency_s: float = 0.0  # before each answer starts
    jitter_s: float = 0.0  # latency is uniform in latency_s ± jitter_s, never below 0
    connection_bytes_per_s: float | None = None
    total_bytes_per_s: float | None = None  # shared by all connections
    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("latency_s", "jitter_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UsageError(f"{name} is {getattr(self, name)}; expected seconds, 0 or more")
        for name in ("connection_bytes_per_s", "total_bytes_per_s"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                raise UsageError(f"{name} is {rate}; expected more than 0, or nothing for no limit")
