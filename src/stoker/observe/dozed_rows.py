"""The batches that the main thread made while hooks dozed: each was made inside a wait for data, which was seen."""

from array import array
from collections.abc import Collection, Iterator, Sequence

from stoker.observe.workers import ALIKE, ROW
from stoker.records.observed import ARG, KIND, Kind

Span = tuple[int, int]
BEGIN, END, SAMPLES, COLLATED = 1, 2, 3, 4
"""Places in a row."""


def with_dozed(
    rows: "list[array[int]]", times: Sequence[int], codes: Sequence[int], loaders: Collection[int]
) -> "list[array[int]]":
    """Rows of batches, and one for each wait in a doze, for loaders without workers; it is like the row before it.

    Of these waits making the batch took the share that it took of those that were seen inside.
    """
    awake, dozed = _waits(times, codes, loaders)
    if not (rows and dozed):
        return rows
    inside = _inside(rows, awake)
    waited_ns = sum(end - begin for (begin, end), _ in inside)
    share = sum(row[END] - row[BEGIN] for _, row in inside) / waited_ns if waited_ns else 1.0
    return list(_merged(rows, dozed, share))


def _waits(times: Sequence[int], codes: Sequence[int], loaders: Collection[int]) -> tuple[list[Span], list[Span]]:
    """The waits for data that ended with a batch, those with all hooks and those in a doze."""
    begins = {Kind.NEXT << 1 | loader << ARG for loader in loaders}
    found: tuple[list[Span], list[Span]] = ([], [])
    dozing = 0
    began: Span = (0, 0)
    for time_ns, code in zip(times, codes, strict=True):
        if code >> 1 & KIND == Kind.DOZE:
            dozing = 1 - (code & 1)
        elif code in begins:
            began = time_ns, code
        elif code & 1 and code - 1 == began[1]:
            found[dozing].append((began[0], time_ns))
            began = (0, 0)
    return found


def _inside(rows: "list[array[int]]", waits: list[Span]) -> "list[tuple[Span, array[int]]]":
    """The waits in which one of these rows was made."""
    found = []
    following = iter(sorted(rows, key=lambda row: row[BEGIN]))
    row = next(following, None)
    for begin, end in waits:
        while row is not None and row[BEGIN] < begin:
            row = next(following, None)
        if row is not None and row[END] <= end:
            found.append(((begin, end), row))
    return found


def _merged(rows: "list[array[int]]", dozed: list[Span], share: float) -> "Iterator[array[int]]":
    known = sorted(rows, key=lambda row: row[BEGIN])
    at = 0
    for begin, end in dozed:
        while at < len(known) and known[at][BEGIN] < begin:
            yield known[at]
            at += 1
        like = known[max(at - 1, 0)]
        took = round((end - begin) * share)
        collated = round(like[COLLATED] * took / max(like[END] - like[BEGIN], 1))
        yield array("q", [ALIKE, end - took, end, like[SAMPLES], collated, *[0] * (ROW - COLLATED - 1)])
    yield from known[at:]
