"""A run's steps and meters as Arrow tables, for those who compute with them: pandas, polars and DuckDB read them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from stoker.records.attributed import Step
from stoker.records.observed import Meter, PhaseName

STEPS, METERS = "steps.arrow", "meters.arrow"


def write(steps: Sequence[Step], meters: Sequence[Meter], start_ns: int, directory: Path) -> None:
    """One file for the steps and one for the meters."""
    _write(_steps(steps, start_ns), directory / STEPS)
    _write(_meters(meters, start_ns), directory / METERS)


def _steps(steps: Sequence[Step], start_ns: int) -> dict[str, list[Any]]:
    """A row for each step: when, of which epoch, and its seconds in each phase."""
    columns: dict[str, list[Any]] = {
        "step": list(range(len(steps))),
        "epoch": [step.epoch for step in steps],
        "start_s": [(step.start_ns - start_ns) / 1e9 for step in steps],
        "end_s": [(step.end_ns - start_ns) / 1e9 for step in steps],
        "seconds": [step.seconds for step in steps],
    }
    return columns | {f"{name}_s": [step.parts.get(name, 0.0) for step in steps] for name in get_args(PhaseName)}


def _meters(meters: Sequence[Meter], start_ns: int) -> dict[str, list[Any]]:
    """A row for each look at the machine. What is counted by process is summed; null is what could not be read."""
    return {
        "time_s": [(meter.time_ns - start_ns) / 1e9 for meter in meters],
        "processes": [len(meter.cpu_s) for meter in meters],
        "cpu_s": [_sum(meter.cpu_s) for meter in meters],
        "private_bytes": [_sum(meter.private_bytes) for meter in meters],
        "shm_bytes": [meter.shm_bytes for meter in meters],
        "running": [meter.running for meter in meters],
        "throttled_s": [meter.throttled_s for meter in meters],
        "busy_s": [meter.busy_s for meter in meters],
        "stolen_s": [meter.stolen_s for meter in meters],
        "disk_read_bytes": [meter.disk_read_bytes for meter in meters],
        "disk_write_bytes": [meter.disk_write_bytes for meter in meters],
        "net_received_bytes": [meter.net_received_bytes for meter in meters],
        "net_sent_bytes": [meter.net_sent_bytes for meter in meters],
        "device_busy_share": [meter.device_busy_share for meter in meters],
        "device_bytes": [meter.device_bytes for meter in meters],
    }


def _sum(by_process: Mapping[str, float]) -> float | None:
    return sum(by_process.values()) if by_process else None


def _write(columns: Mapping[str, Iterable[Any]], path: Path) -> None:
    import pyarrow as pa

    # Said, not guessed: a column of nothing but null keeps its type.
    whole = {"step", "epoch", "processes", *(name for name in columns if name.endswith("_bytes"))}
    kinds = {name: pa.int64() if name in whole else pa.float64() for name in columns}
    table = pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})
    part = path.with_suffix(".part")
    with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    part.replace(path)
