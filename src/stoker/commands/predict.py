"""`stoker predict`: what a recorded run would have done with other knobs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from stoker.commands.numbers import Finite
from stoker.commands.outputs import OutFile
from stoker.errors import UsageError
from stoker.records.observed import LoaderFacts, Value
from stoker.records.predicted import WhatIf


@click.command()
@click.argument("run")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KNOB=VALUE",
    help="num_workers, prefetch_factor, persistent_workers or batch_size.",
)
@click.option("--cores", type=Finite(min=0, min_open=True), help="With another number of cores.")
@click.option("--device-speed", default=1.0, type=Finite(min=0, min_open=True), help="A device this much faster.")
@click.option("--latency", default=1.0, type=Finite(min=0), help="Storage that makes workers wait this much longer.")
@click.option("--json", "json_path", type=OutFile(), help="Also write the prediction as JSON; - is stdout.")
def predict(
    run: str,
    settings: tuple[str, ...],
    cores: float | None,
    device_speed: float,
    latency: float,
    json_path: Path | None,
) -> int:
    """Simulate RUN (a name, or `last`) with other knobs, from what its workers and its steps took:

    \b
        stoker predict last --set num_workers=8
        stoker predict last --set batch_size=512 --device-speed 2

    A simulation of workers, shared cores, prefetch and in-order delivery; it knows nothing of what it has not seen.
    `stoker tune` measures.
    """  # noqa: D301  click's own mark is a backspace
    from rich.console import Console

    from stoker.commands.run import parse_settings
    from stoker.ledger import Ledger
    from stoker.report import data, whatif

    knobs = parse_settings(settings)
    if not knobs and cores is None and (device_speed, latency) == (1.0, 1.0):
        raise UsageError("nothing would change; write what to change: --set num_workers=8, --device-speed 2 …")
    prediction = simulate(Ledger().find(run), knobs, cores=cores, device_speed=device_speed, latency=latency)
    if not data.is_stdout(json_path):
        whatif.show(prediction, Console())
    if json_path is not None:
        data.write(data.dumps(prediction), json_path)
    return 0


def simulate(
    directory: Path, knobs: Mapping[str, Value], *, cores: float | None, device_speed: float, latency: float
) -> WhatIf:
    """Records → pipeline → the same with other knobs → what that would bring."""
    from stoker.attribute import attribute
    from stoker.observe.readback import read
    from stoker.predict import epoch_parts
    from stoker.predict.pipeline import epoch_step_s, step_s
    from stoker.predict.whatif import changed, measured

    seen = read(directory)
    named = attribute(seen.tracks[0])
    pipeline = measured(seen, named)
    facts = next(wait.facts for wait in named.loaders if wait.role == "train")
    _check(knobs, facts, device_speed, on_device=seen.tracks[0].device not in (None, "cpu"))
    other = changed(pipeline, facts, knobs, device_speed)
    other = replace(other, cores=cores or other.cores, wait_s=tuple(one * latency for one in other.wait_s))
    assert named.steady is not None, "a measured pipeline has steady steps"
    size = knobs.get("batch_size")
    factor = size / facts.batch_size if isinstance(size, int) and facts.batch_size else 1.0
    step_ratio = epoch_step_s(other) / epoch_step_s(pipeline)
    parts = epoch_parts(named)
    steps_s = parts.first_batch_s + parts.head_s + parts.steady_s if parts else 0.0
    return WhatIf(
        knobs=dict(knobs),
        measured_step_s=named.steady.mean_step_s,
        simulated_step_s=step_s(pipeline),
        step_s=named.steady.mean_step_s * step_ratio,
        ratio=factor / step_ratio,
        epoch_s=parts.total_s + steps_s * (step_ratio / factor - 1) if parts else None,
        memory_bytes=other.memory_bytes,
    )


def _check(knobs: Mapping[str, Value], facts: LoaderFacts, device_speed: float, *, on_device: bool) -> None:
    """Refuse what would change nothing, and what cannot be."""
    workers, size = knobs.get("num_workers", facts.num_workers), knobs.get("batch_size")
    for name in ("prefetch_factor", "persistent_workers"):
        if name in knobs and not workers:
            raise UsageError(f"{name} means nothing without workers; add --set num_workers=2")
    if isinstance(size, int) and facts.samples is not None and size > facts.samples:
        raise UsageError(f"batch_size is {size}; the data set has {facts.samples} samples")
    if device_speed != 1.0 and not on_device:
        raise UsageError("--device-speed: the run had no device, its model ran on the cores; --cores can be changed")
