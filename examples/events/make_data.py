"""Make neutrino-like events: Parquet files of pulses, ragged by event, and a metadata file with places and labels."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import folder

# The note has 660 files of 200,000 events. Scale grows the files up to 50 times, then their number.
FILES, FILES_MOST = 16, 660
FILE_EVENTS, FILE_EVENTS_MOST = 4_000, 200_000
SENSORS = 5160
PULSES_MEAN, PULSES_LEAST, PULSES_MOST = 200, 5, 178_000
SPREAD = 1.3  # of a lognormal whose mean is 200: over 132 million events its largest comes near 178,000
PULSE_BYTES = 12  # about, once compressed


def plan(scale: float) -> folder.Sizes:
    file_events = min(FILE_EVENTS_MOST, max(40, round(FILE_EVENTS * scale)))
    files = min(FILES_MOST, max(FILES, round(FILES * FILE_EVENTS * scale / file_events)))
    events = files * file_events
    return {"files": files, "file_events": file_events, "events": events, "bytes": events * PULSES_MEAN * PULSE_BYTES}


def write(out: Path, sizes: folder.Sizes, seed: int, tick: folder.Tick) -> None:
    (out / "pulses").mkdir()
    metadata = []
    for file in range(sizes["files"]):
        random = np.random.default_rng([seed, file])
        counts = _pulse_counts(random, sizes["file_events"])
        event_ids = file * sizes["file_events"] + np.arange(sizes["file_events"])
        pq.write_table(_pulses(random, event_ids, counts), out / "pulses" / f"batch_{file:03d}.parquet")
        metadata.append(_labels(random, event_ids, counts, file))
        tick()
    pq.write_table(pa.concat_tables(metadata), out / "meta.parquet")


def _pulse_counts(random: np.random.Generator, events: int) -> np.ndarray:
    drawn = random.lognormal(np.log(PULSES_MEAN) - SPREAD**2 / 2, SPREAD, events)
    return np.clip(drawn, PULSES_LEAST, PULSES_MOST).astype(np.int64)


def _pulses(random: np.random.Generator, event_ids: np.ndarray, counts: np.ndarray) -> pa.Table:
    total = int(counts.sum())
    # An event lights a stretch of the detector: sensors around a centre, a few pulses each.
    centre = np.repeat(random.integers(0, SENSORS, len(counts)), counts)
    reach = np.repeat(np.maximum(4, counts // 3), counts)
    sensor = (centre + random.integers(0, SENSORS, total) % reach) % SENSORS
    return pa.table(
        {
            "event_id": np.repeat(event_ids, counts),
            "sensor_id": sensor.astype(np.int16),
            "time": random.integers(0, 20_000, total),
            "charge": random.gamma(2.0, 0.5, total).astype(np.float32),
            "auxiliary": random.random(total) < 0.7,
        }
    )


def _labels(random: np.random.Generator, event_ids: np.ndarray, counts: np.ndarray, file: int) -> pa.Table:
    stop = np.cumsum(counts)
    return pa.table(
        {
            "batch_id": np.full(len(counts), file, np.int32),
            "event_id": event_ids,
            "first_pulse_index": stop - counts,
            "last_pulse_index": stop - 1,
            "azimuth": random.uniform(0, 2 * np.pi, len(counts)),
            "zenith": np.arccos(random.uniform(-1, 1, len(counts))),
        }
    )


if __name__ == "__main__":
    folder.make("events", __doc__, plan, write)
