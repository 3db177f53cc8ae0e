"""The report for programs: JSON whose keys are a contract."""

import json
from pathlib import Path

from stoker.records import Diagnosis, encode


def dumps(diagnosis: Diagnosis) -> str:
    """The diagnosis as JSON; what was not measured is null."""
    return json.dumps(encode(diagnosis), indent=2, allow_nan=False, ensure_ascii=False)


def write(text: str, path: Path) -> None:
    """Write a report where the user asked for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
