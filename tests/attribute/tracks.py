"""Tracks written by hand, in milliseconds."""

from collections.abc import Sequence

from stoker.records import ARG, Cut, Kind, Line, LoaderFacts, Track

MS = 1_000_000


def loader(number: int = 1, length: int | None = 10, workers: int = 0) -> LoaderFacts:
    prefetch = 2 if workers else None
    return LoaderFacts(
        number, "DataLoader", "D", length, 40, 4, workers, prefetch, False, False, True, None, "train.py", 1
    )


class Script:
    """A script that is written down as it goes: each call lasts some milliseconds."""

    def __init__(self) -> None:
        self.now = 0
        self.events: list[tuple[int, int]] = []

    def own(self, ms: float) -> "Script":
        self.now += round(ms * MS)
        return self

    def begin(self, kind: Kind, argument: int = 0) -> "Script":
        self.events.append((self.now, kind << 1 | argument << ARG))
        return self

    def end(self, kind: Kind, argument: int = 0) -> "Script":
        self.events.append((self.now, kind << 1 | 1 | argument << ARG))
        return self

    def span(self, kind: Kind, ms: float, argument: int = 0) -> "Script":
        return self.begin(kind, argument).own(ms).end(kind, argument)

    def exhausted(self, ms: float, argument: int = 1) -> "Script":
        return self.begin(Kind.NEXT, argument).own(ms).end(Kind.EXHAUSTED, argument)

    def step(self, wait: float = 2, own: float = 1, number: int = 1) -> "Script":
        """2 ms data, 3 forward, 1 loss, 4 backward, 1 optimizer, 1 own."""
        self.span(Kind.NEXT, wait, number).span(Kind.FORWARD, 3).own(1).span(Kind.BACKWARD, 4)
        return self.span(Kind.OPTIMIZER, 1, 1).own(own)

    def track(
        self,
        loaders: Sequence[LoaderFacts] = (),
        cuts: Sequence[Cut] = (),
        samples: Sequence[tuple[int, int]] = (),
        lines: Sequence[Line] = (),
    ) -> Track:
        return make_track(self.events, 0, self.now, loaders, cuts, samples, lines)


def make_track(
    events: Sequence[tuple[int, int]],
    start_ns: int,
    end_ns: int,
    loaders: Sequence[LoaderFacts] = (),
    cuts: Sequence[Cut] = (),
    samples: Sequence[tuple[int, int]] = (),
    lines: Sequence[Line] = (),
) -> Track:
    return Track(
        pid=1,
        rank=None,
        start_ns=start_ns,
        end_ns=end_ns,
        times_ns=tuple(time_ns for time_ns, _ in events),
        codes=tuple(code for _, code in events),
        sample_times_ns=tuple(time_ns for time_ns, _ in samples),
        sample_lines=tuple(line for _, line in samples),
        lines=tuple(lines),
        loaders=tuple(loaders),
        cuts=tuple(cuts),
        notes=(),
        device=None,
        device_busy_ns=None,
        device_peak_bytes=None,
        epochs_planned=None,
        module_calls=0,
        own_ns=0,
        event_ns=None,
        call_ns=None,
        batch_samples=(),
    )
