"""The report for programs: JSON whose keys are a contract."""

import json
from pathlib import Path

from stoker.errors import UsageError
from stoker.records.codec import encode
from stoker.records.compared import Comparison
from stoker.records.diagnosis import Diagnosis
from stoker.records.live import Live
from stoker.records.predicted import DeviceProfile, WhatIf
from stoker.records.tuning import Trial, Tuning


def dumps(record: Diagnosis | Tuning | WhatIf | Trial | DeviceProfile | Live | Comparison) -> str:
    """A record as JSON; what was not measured is null."""
    return json.dumps(encode(record), indent=2, allow_nan=False, ensure_ascii=False)


def is_stdout(path: Path | None) -> bool:
    """True of `-`."""
    return str(path) == "-"


def write(text: str, path: Path) -> None:
    """Write a report where the user asked for it; `-` is stdout."""
    if is_stdout(path):
        print(text, flush=True)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} could not be written: {error.strerror}") from error
