"""Which worker made which batch, and how many were ready when one was asked for.

A DataLoader takes batches from its workers in turn, so the k-th of a pass is the (k ÷ workers)-th of worker
k mod workers. An experiment may have used some up in between; where that leaves a batch that was taken before it
was made, the match is not believed.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stoker.attribute.excise import Clock
from stoker.records.attributed import Attribution, Pass, Step
from stoker.records.observed import Observation, Track, WorkerBatch, WorkerTrack

BELIEVED_SHARE = 0.9
"""A match holds if at least this share of its batches were made before they were taken."""


@dataclass(frozen=True, slots=True)
class Made:
    """One batch on the clock without experiments. `worker` is None where the main thread made it itself."""

    worker: int | None
    begin_ns: int
    end_ns: int
    ready_ns: int
    batch: WorkerBatch


def train_workers(seen: Observation, track: Track, named: Attribution) -> list[WorkerTrack]:
    """The workers whose batches were trained on; those of experiments are not."""
    ours = {pid for bench in track.probes.benches for pid in bench.pids}
    trains = {one.loader for one in named.passes if one.is_train}
    found = [worker for worker in seen.workers if worker.pid not in ours]
    if len(seen.tracks) > 1:  # other ranks have workers of the same numbers
        own = [worker for worker in found if track.pid in (worker.parent, worker.pid)]
        found = own or found
    return [worker for worker in found if worker.worker is None or worker.loader in trains]


def made_by(workers: Sequence[WorkerTrack], clock: Clock) -> list[Made]:
    """Every batch of these workers, in the order in which they were begun."""
    found = [
        Made(
            worker.worker,
            clock.read(batch.begin_ns),
            clock.read(batch.end_ns),
            clock.read(batch.end_ns + round(batch.send_s * 1e9)),
            batch,
        )
        for worker in workers
        for batch in worker.batches
    ]
    return sorted(found, key=lambda made: made.begin_ns)


def matched(made: Sequence[Made], named: Attribution, used_up: Sequence[tuple[int, int]]) -> Mapping[int, Made]:
    """The batch that each step waited for, by the step's number; empty where the match is not believed.

    `used_up` is when an experiment ended, on the same clock, and how many batches it had taken.
    """
    found: dict[int, Made] = {}
    begins = [one.begin_ns for one in made]
    for one, numbers in passes_of(named):
        inside = made[bisect_left(begins, one.start_ns) : bisect_right(begins, one.end_ns)]
        turns = _turns(inside)
        for place, number in enumerate(numbers):
            start_ns = named.steps[number].start_ns
            taken = place + sum(count for time_ns, count in used_up if one.start_ns <= time_ns <= start_ns)
            row = turns[taken % len(turns)] if turns else []
            if taken // max(len(turns), 1) < len(row):
                found[number] = row[taken // len(turns)]
    late = sum(1 for number, one in found.items() if one.end_ns > taken_ns(named.steps[number]))
    return found if late <= (1 - BELIEVED_SHARE) * len(found) else {}


def passes_of(named: Attribution) -> list[tuple[Pass, range]]:
    """Each training pass with the numbers of its steps."""
    starts = [step.start_ns for step in named.steps]
    return [
        (one, range(bisect_left(starts, one.start_ns), bisect_right(starts, one.end_ns))) for one in train_passes(named)
    ]


def train_passes(named: Attribution) -> list[Pass]:
    """The passes of the loader that the steps were counted by."""
    train = [one for one in named.passes if one.is_train and one.batches]
    batches: Counter[int] = Counter()
    for one in train:
        batches[one.loader] += one.batches
    primary = max(batches, key=batches.__getitem__, default=None)
    return [one for one in train if one.loader == primary]


def taken_ns(step: Step) -> int:
    """When the step had its batch."""
    return step.start_ns + round((step.parts.get("data_wait", 0.0) + step.parts.get("first_batch", 0.0)) * 1e9)


def _turns(inside: Sequence[Made]) -> list[list[Made]]:
    rows: dict[int, list[Made]] = defaultdict(list)
    for one in inside:
        rows[one.worker or 0].append(one)
    return [rows[number] for number in sorted(rows)]


def ready(made: Sequence[Made], named: Attribution, used_up: Sequence[tuple[int, int]]) -> Mapping[int, int]:
    """Batches that were made and not yet taken when each step asked for one; empty without workers."""
    if not any(one.worker is not None for one in made):
        return {}
    begins = [one.begin_ns for one in made]
    found: dict[int, int] = {}
    for one, numbers in passes_of(named):
        inside = made[bisect_left(begins, one.start_ns) : bisect_right(begins, one.end_ns)]
        done = sorted(each.ready_ns for each in inside)
        for place, number in enumerate(numbers):
            start_ns = named.steps[number].start_ns
            taken = place + sum(count for time_ns, count in used_up if one.start_ns <= time_ns <= start_ns)
            found[number] = max(bisect_right(done, start_ns) - taken, 0)
    return found
