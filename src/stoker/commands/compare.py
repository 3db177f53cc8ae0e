"""`stoker compare`: two recorded runs side by side, and whether the difference is one."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from stoker.commands.outputs import OutFile
from stoker.ledger import Ledger
from stoker.records.attributed import Attribution
from stoker.records.compared import Comparison, Contrast, Difference
from stoker.records.diagnosis import Diagnosis
from stoker.records.observed import LoaderFacts, Observation, Value

LOADER = (
    *("dataset", "samples", "length", "batch_size", "num_workers", "prefetch_factor", "pin_memory"),
    *("persistent_workers", "shuffled"),
)


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--json", "json_path", type=OutFile(), help="Write it as JSON; - is stdout.")
def compare(a: str, b: str, json_path: Path | None) -> int:
    """Compare run B with run A: what was set, and what it took. A and B are names, starts of names, or directories:

    \b
        stoker compare 20261115-2052 last
        stoker compare A B --json comparison.json

    Steps are compared per sample, so batch sizes may differ. One run each is little: where the steps vary too much, or
    the difference is no larger than two runs of the same command may have, it says so. `stoker tune` proves.
    """  # noqa: D301  click's own mark is a backspace
    from rich.console import Console

    from stoker.report import comparison, data

    ledger = Ledger()
    found = contrast(Side.read(ledger.find(a)), Side.read(ledger.find(b)))
    if json_path is not None:
        data.write(data.dumps(found), json_path)
    if not data.is_stdout(json_path):
        comparison.show(found, Console())
    return 0


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs."""

    seen: Observation
    named: Attribution
    diagnosis: Diagnosis
    knobs: dict[str, Value]

    @staticmethod
    def read(directory: Path) -> "Side":
        """Everything that was recorded of a run."""
        from stoker.attribute import attribute
        from stoker.commands.doctor import diagnose
        from stoker.observe.options import Options

        seen, diagnosis, *_ = diagnose(directory)
        try:
            knobs = dict(Options.read(directory).knobs)
        except (OSError, ValueError):  # a run from inside a script, or of another version
            knobs = {}
        return Side(seen, attribute(seen.tracks[0]), diagnosis, knobs)

    def loader(self) -> LoaderFacts | None:
        """The loader that trains."""
        return next((one.facts for one in self.named.loaders if one.role == "train"), None)

    def steps_s(self) -> list[float]:
        """Seconds a sample of each steady step; a step's where the size of a batch is not known."""
        steady = self.named.steady
        size = self._batch_size()
        return [self.named.steps[i].seconds / (size or 1) for i in steady.steps] if steady else []

    def _batch_size(self) -> float | None:
        rate, step_s = self.diagnosis.samples_per_s, self.diagnosis.mean_step_s
        return rate * step_s if rate and step_s else None


def contrast(a: Side, b: Side) -> Comparison:
    """Two runs → what differs in them and whether one was faster."""
    from stoker.decide import conclude

    speed, outcome, reason = conclude(a.steps_s(), b.steps_s())
    return Comparison(
        a=a.seen.run,
        b=b.seen.run,
        outcome=outcome,
        reason=reason,
        speed=speed,
        settings=tuple(_settings(a, b)),
        figures=tuple(_figures(a.diagnosis, b.diagnosis)),
        phases=tuple(_phases(a.diagnosis, b.diagnosis)),
    )


def _settings(a: Side, b: Side) -> Iterator[Difference]:
    """What was set differently: the command, knobs, the loader, the machine."""
    pairs: list[tuple[str, Value, Value]] = [("command", shlex.join(a.seen.command), shlex.join(b.seen.command))]
    names = dict.fromkeys([*a.knobs, *b.knobs])
    pairs += [(f"knob {name}", a.knobs.get(name), b.knobs.get(name)) for name in names]
    ours, theirs = a.loader(), b.loader()
    pairs += [(f"loader {name}", getattr(ours, name, None), getattr(theirs, name, None)) for name in LOADER]
    machines = a.seen.machine, b.seen.machine
    pairs += [(name, *(getattr(one, name) for one in machines)) for name in ("cores", "quota_cores", "ram_bytes")]
    pairs.append(("device", a.diagnosis.device.name, b.diagnosis.device.name))
    return (Difference(name, one, other) for name, one, other in pairs if one != other)


def _figures(a: Diagnosis, b: Diagnosis) -> Iterator[Contrast]:
    rows: list[tuple[str, str, str]] = [
        ("mean steady step", "mean_step_s", "s"),
        ("median step", "steady_step_s.median", "s"),
        ("p95 step", "steady_step_s.p95", "s"),
        ("samples", "samples_per_s", "samples/s"),
        ("start-up", "startup_s", "s"),
        ("epoch, forecast", "prediction.epoch_s", "s"),
        ("loader alone", "ceilings.loader_samples_per_s", "samples/s"),
        ("model alone", "ceilings.compute_samples_per_s", "samples/s"),
        ("device busy", "device.busy_share", "share"),
        ("CPU busy", "machine.cpu_share", "share"),
        ("host memory", "memory.host_peak_bytes", "B"),
        ("device memory", "memory.device_peak_bytes", "B"),
        ("shared memory", "memory.shm_peak_bytes", "B"),
        ("steps seen", "steps", ""),
    ]
    for name, path, unit in rows:
        one, other = _get(a, path), _get(b, path)
        if one is not None or other is not None:
            yield Contrast(name, one, other, unit)


def _get(diagnosis: Diagnosis, path: str) -> float | None:
    value: object = diagnosis
    for name in path.split("."):
        value = getattr(value, name, None)
    return float(value) if isinstance(value, (int, float)) else None


def _phases(a: Diagnosis, b: Diagnosis) -> Iterator[Contrast]:
    ours, theirs = ({phase.name: phase.seconds for phase in one.step_phases} for one in (a, b))
    for name in dict.fromkeys([*ours, *theirs]):
        yield Contrast(name, ours.get(name, 0.0), theirs.get(name, 0.0), "s")
