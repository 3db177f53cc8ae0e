"""Small files of a run, written whole or not at all."""

import json
import sys
from pathlib import Path


def write(directory: Path, name: str, content: object) -> None:
    """One small JSON file, whole or not at all; a full disk is no reason to stop."""
    try:
        scratch = directory / f".{name}.part"
        scratch.write_text(json.dumps(content))
        scratch.replace(directory / name)
    except OSError as error:
        print(f"stoker: could not write {name}: {error}", file=sys.stderr)
