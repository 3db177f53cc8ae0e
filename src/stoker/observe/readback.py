"""The files of a run, whatever is there of them, as one `Observation`."""

import json
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.errors import UsageError
from stoker.observe import workers
from stoker.observe.dozed import fill
from stoker.observe.dozed_rows import with_dozed
from stoker.observe.meters import machine
from stoker.records.codec import decode
from stoker.records.observed import (
    KIND,
    SMALLEST_TIME,
    TRAINING,
    Collect,
    Cut,
    Line,
    LoaderFacts,
    Machine,
    Meter,
    NoBatch,
    Observation,
    Track,
    WorkerBatch,
    WorkerTrack,
)
from stoker.records.probes import (
    Bench,
    Cold,
    Container,
    Drain,
    Inspection,
    Making,
    Ordering,
    Probes,
    Replay,
    Stretch,
    Window,
)


def read(directory: Path) -> Observation:
    """Everything that was seen of the run in `directory`, also if it was killed halfway."""
    known = about(directory)
    end = _json(directory / "end.json") or {}
    processes = [Process(path) for path in sorted(directory.glob("*.notes"))]
    meters = tuple(_meters(directory / "meters.jsonl"))
    start_ns = int(known["start_ns"])
    end_ns = int(end.get("end_ns") or _last_sign(processes, meters, start_ns))
    made = [process.worker() for process in processes]
    tracks = [process.track(start_ns, end_ns) for process in processes if process.facts("worker") is None]
    tracks = tracks or [_unseen(start_ns, end_ns)]
    return Observation(
        run=directory.name,
        command=tuple(known["command"]),
        started_s=float(known["started_s"]),
        start_ns=start_ns,
        end_ns=end_ns,
        exit_code=end.get("code"),
        whole=bool(known["whole"]),
        interrupted=bool(end.get("interrupted")),
        attached=bool(processes),
        ended_by_doctor=bool(end.get("ended_by_doctor")) or any(process.facts("enough") for process in processes),
        trouble=tuple(_trouble(directory, processes)),
        tracks=tuple(sorted(tracks, key=_trained, reverse=True)),
        workers=tuple(worker for worker in made if worker is not None),
        meters=meters,
        machine=decode(Machine, known["machine"]) if "machine" in known else machine(),
    )


def about(directory: Path) -> dict[str, Any]:
    """What was written down when the run began."""
    known = _json(directory / "run.json")
    if known is None and (directory / "doctor" / "run.json").exists():
        raise UsageError(f"{directory} is a tuning, not a run; its diagnosis is one: {directory / 'doctor'}")
    if known is None:
        raise UsageError(f"{directory} holds no run; expected a directory below .stoker/runs")
    return known


def _trained(track: Track) -> tuple[int, int, int]:
    """The main track is the one that trained most; among equals the lowest rank, then the fullest."""
    steps = sum(1 for code in track.codes if code >> 1 & KIND in TRAINING and code & 1)
    return steps, -(track.rank or 0), len(track.codes)


def _unseen(start_ns: int, end_ns: int) -> Track:
    """The track of a command in which nothing could be attached."""
    nothing = (None,) * 4
    return Track(0, None, start_ns, end_ns, (), (), (), (), (), (), (), (), *nothing, 0, None, None, None, ())


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file of JSON lines; the last may be torn."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def _meters(path: Path) -> Iterator[Meter]:
    for line in _lines(path):
        try:
            yield decode(Meter, line)
        except ValueError:
            continue


def _last_sign(processes: list["Process"], meters: tuple[Meter, ...], start_ns: int) -> int:
    """When a run that did not say goodbye was last seen alive."""
    signs = [start_ns, *(meter.time_ns for meter in meters)]
    return max([*signs, *(process.last_ns() for process in processes)])


def _trouble(directory: Path, processes: list["Process"]) -> Iterator[str]:
    for path in sorted(directory.glob("trouble-*.txt")):
        yield path.read_text()
    failed = directory / "attach-failed.txt"
    if failed.exists():
        yield f"could not attach: {failed.read_text().strip()}"
    for process in processes:
        yield from (note["text"] for note in process.notes if note["note"] == "trouble")


class Process:
    """The files of one process."""

    def __init__(self, notes: Path) -> None:
        self._stem = notes.with_suffix("")
        self.notes = [note for note in _lines(notes) if "note" in note]
        self.pid = int(notes.name.split("-")[1])

    def facts(self, name: str) -> dict[str, Any] | None:
        """The last note of this name."""
        return next((note for note in reversed(self.notes) if note["note"] == name), None)

    def all(self, name: str) -> list[dict[str, Any]]:
        """Every note of this name."""
        return [note for note in self.notes if note["note"] == name]

    def _loaders(self) -> tuple[LoaderFacts, ...]:
        """The loaders; a stream that came to its end has shown its length, with the batches of experiments in it."""
        shown: dict[int, int] = {}
        for note in self.all("stream"):
            shown[note["loader"]] = max(note["batches"], shown.get(note["loader"], 0))
        found = [loader_facts(note) for note in self.all("loader")]
        return tuple(replace(one, length=one.length or shown.get(one.loader)) for one in found)

    def last_ns(self) -> int:
        """The last thing this process wrote."""
        times = [int(note["t"]) for note in self.notes]
        return max([*times, *self._pairs("events")[0], *self._pairs("samples")[0]], default=0)

    def _numbers(self, column: str) -> "array[int]":
        path = self._stem.with_suffix(f".{column}")
        numbers = array("q")
        if path.exists():
            data = path.read_bytes()
            numbers.frombytes(data[: len(data) - len(data) % 8])
        return numbers

    def _pairs(self, column: str) -> tuple[list[int], list[int]]:
        """Times and codes, without what was torn."""
        times: list[int] = []
        codes: list[int] = []
        waiting: int | None = None
        for number in self._numbers(column):
            if number >= SMALLEST_TIME:
                waiting = number
            elif waiting is not None:
                times.append(waiting)
                codes.append(number)
                waiting = None
        return times, codes

    def _places(self) -> tuple[Line, ...]:
        notes = self.all("line")
        return tuple(Line(n["file"], n["line"], n["function"], n["leaf"], n.get("after_step", False)) for n in notes)

    def track(self, start_ns: int, end_ns: int) -> Track:
        """The process as one that may have trained."""
        seen_times, seen_codes = self._pairs("events")
        times, codes = fill(seen_times, seen_codes)
        sample_times, sample_lines = self._pairs("samples")
        device_times, device_steps = self._pairs("marks")
        lines = self._places()
        seen = [i for i, line in enumerate(sample_lines) if line < len(lines)]
        device = self.facts("device") or {}
        closing = self.facts("closing") or {}
        planned = self.facts("epochs") or {}
        work = self._numbers("device")
        whole = len(work) - len(work) % 3
        return Track(
            pid=self.pid,
            rank=(self.facts("process") or {}).get("rank"),
            start_ns=start_ns,
            end_ns=end_ns,
            times_ns=tuple(times),
            codes=tuple(codes),
            sample_times_ns=tuple(sample_times[i] for i in seen),
            sample_lines=tuple(sample_lines[i] for i in seen),
            lines=lines,
            loaders=self._loaders(),
            cuts=tuple(Cut(n["loader"], n["batches"], n["length"], n["t"], n.get("aside", 0)) for n in self.all("cut")),
            notes=tuple(sorted({f"{n['note']}: {n['path']}" for n in self.all("redirected")})),
            device=device.get("name"),
            device_busy_ns=device.get("busy_ns"),
            device_peak_bytes=device.get("peak_bytes"),
            epochs_planned=planned.get("epochs"),
            steps_planned=planned.get("steps"),
            fork_s=(self.facts("idling") or {}).get("fork_s"),
            module_calls=closing.get("module_calls", 0),
            own_ns=closing.get("own_ns"),
            event_ns=closing.get("event_ns"),
            call_ns=closing.get("call_ns"),
            batch_samples=tuple(n["samples"] for n in self.all("batch") if n["samples"] is not None),
            probes=self._probes(),
            device_times_ns=tuple(device_times),
            device_step_us=tuple(device_steps),
            made=tuple((self.facts("made") or {}).get("paths", ())),
            made_count=(self.facts("made") or {}).get("count", 0),
            losses=tuple((self.facts("losses") or {}).get("values", ())),
            device_total_bytes=device.get("total_bytes"),
            device_starts_ns=tuple(work[0:whole:3]),
            device_ends_ns=tuple(work[1:whole:3]),
            device_work=tuple(work[2:whole:3]),
            batch_bytes=tuple((n["loader"], n["nbytes"]) for n in self.all("batch") if n.get("nbytes")),
            batch_arrays=tuple((n["loader"], n["arrays"]) for n in self.all("batch") if n.get("arrays")),
            no_batches=tuple(
                NoBatch(str(n["text"]), n.get("shm_bytes"), n.get("shm_free")) for n in self.all("no_batch")
            ),
            collects=tuple({n["place"]: Collect(n["place"], n["calls"]) for n in self.all("collect")}.values()),
            filled=max(len(codes) - len(seen_codes), 0),
        )

    def _probes(self) -> Probes:
        """The experiments of this process."""
        gathered = _plain(self.facts("gathered") or {})
        padding = self.facts("padding") or {}
        pickled = self.all("pickled")
        container = gathered.pop("container", None)
        inspection = self.facts("inspection")
        return Probes(
            windows=tuple(decode(Window, _plain(note)) for note in self.all("window")),
            stretches=tuple(decode(Stretch, _plain(note)) for note in self.all("stretch")),
            replays=tuple(decode(Replay, _plain(note)) for note in self.all("replay")),
            fewer=tuple(decode(Replay, _plain(note)) for note in self.all("fewer")),
            drains=tuple(decode(Drain, _plain(note)) for note in self.all("drain")),
            benches=tuple(decode(Bench, _plain(note)) for note in self.all("bench")),
            makings=tuple(decode(Making, _plain(note)) for note in self.all("making")),
            cold=self._cold(),
            inspection=decode(Inspection, _plain(inspection)) if inspection else None,
            container=decode(Container, container) if container else None,
            ordering=self._ordering(),
            padding_share=padding.get("share"),
            pickled_bytes=max((note["bytes"] for note in pickled), default=None),
            pickle_s=sum(note["seconds"] for note in pickled) if pickled else None,
            **gathered,
        )

    def worker(self) -> WorkerTrack | None:
        """The process as a maker of batches, if it made any."""
        batches = self._batches()
        role = self.facts("worker")
        if role is None and not batches:
            return None
        _, sample_lines = self._pairs("samples")
        start = int(self.notes[0]["t"]) if self.notes else 0
        return WorkerTrack(
            pid=self.pid,
            worker=role["worker"] if role else None,
            loader=role["loader"] if role else None,
            start_ns=start,
            end_ns=max([start, *(int(note["t"]) for note in self.notes), *(b.end_ns for b in batches)]),
            batches=batches,
            sample_lines=tuple(sample_lines),
            lines=self._places(),
            makings=tuple(decode(Making, _plain(note)) for note in self.all("making")),
            unpickle_s=max((note["seconds"] for note in self.all("unpickled")), default=None),
            parent=(self.facts("process") or {}).get("parent"),
            cold=self._cold(),
            files=tuple((self.facts("sources") or {}).get("files", ())),
        )

    def _cold(self) -> Cold | None:
        note = self.facts("cold")
        return decode(Cold, _plain(note)) if note else None

    def _rows(self) -> "list[array[int]]":
        numbers = self._numbers("batches")
        return [numbers[i : i + workers.ROW] for i in range(0, len(numbers) - workers.ROW + 1, workers.ROW)]

    def _ordering(self) -> Ordering | None:
        rows = [row for row in self._rows() if row[0] == workers.ORDERED]
        return Ordering(sum(row[2] - row[1] for row in rows) / 1e9, sum(row[3] for row in rows)) if rows else None

    def _batches(self) -> tuple[WorkerBatch, ...]:
        rows = self._rows()
        made = [row for row in rows if row[0] in (workers.MADE, workers.ALIKE)]
        alone = [note["loader"] for note in self.all("loader") if not note["num_workers"]]
        if alone:
            made = with_dozed(made, *self._pairs("events"), alone)
        made = _like_the_one_before(made)
        sent = [row for row in rows if row[0] == workers.SENT]
        spun_ns = round(((self.facts("idling") or {}).get("spun_s") or 0.0) * 1e9)
        return tuple(_batch(row, sent[i] if i < len(sent) else None, spun_ns) for i, row in enumerate(made))


def _plain(note: dict[str, Any]) -> dict[str, Any]:
    """A note without what every note has."""
    return {key: value for key, value in note.items() if key not in ("note", "t")}


def _like_the_one_before(rows: list["array[int]"]) -> list["array[int]"]:
    """Short batches were not accounted for one by one: they take the proportions of the last that was."""
    last: array[int] | None = None
    for row in rows:
        if row[0] == workers.MADE:
            last = row
        elif last is not None:
            scale = (row[2] - row[1]) / max(last[2] - last[1], 1)
            row[5:16] = array("q", [int(value * scale) for value in last[5:16]])
            row[16] = last[16]  # names only grow
            row[17:19] = array("q", [int(value * scale) for value in last[17:19]])
    return rows


def loader_facts(note: dict[str, Any]) -> LoaderFacts:
    """A loader, from its note."""
    return decode(LoaderFacts, _plain(note))


def _batch(made: "array[int]", sent: "array[int] | None", spun_ns: int) -> WorkerBatch:
    """A batch from its row. `spun_ns` is what torch's threads take of a core after the step before it."""
    _, start, end, samples, collated, user, system, ran, queued, blocked, minor, major, read, disk, *found = made
    if not user + system:  # shorter than a tick of the kernel's clock: the scheduler's own account is finer
        user = ran
    cpu, opens, names, requests, net, size, checksum, threads, private, *_ = found
    return WorkerBatch(
        begin_ns=start,
        end_ns=end,
        samples=samples,
        fetch_s=(end - start - collated) / 1e9,
        collate_s=collated / 1e9,
        send_s=(sent[2] - sent[1]) / 1e9 if sent else 0.0,
        user_s=user / 1e9,
        system_s=system / 1e9,
        blocked_s=blocked / 1e9,
        queued_s=queued / 1e9,
        major_faults=major,
        minor_faults=minor,
        read_bytes=read,
        disk_bytes=disk,
        sent_bytes=sent[4] if sent else 0,
        tensors=sent[5] if sent else 0,
        process_cpu_s=max(cpu - spun_ns, min(cpu, user + system)) / 1e9,
        opens=opens,
        names=names,
        requests=requests,
        net_bytes=net,
        result_bytes=size,
        result_hash=checksum,
        threads=threads,
        private_bytes=private,
        pickled_bytes=sent[3] if sent else 0,
    )
