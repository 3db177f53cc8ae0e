"""A place is a line that the user can change."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from stoker.observe.frames import Frames


def here() -> FrameType:
    return sys._getframe(1)


@dataclass
class Made:
    """Its `__init__` is written by dataclasses, and calls `here`."""

    frame: FrameType = field(default_factory=here)


def in_cache(cache: Path) -> FrameType:
    """Where a module that torch.compile has written stands."""
    scope: dict[str, Any] = {"here": here}
    exec(compile("def call():\n    return here()", str(cache / "ab" / "cab.py"), "exec"), scope)
    frame = scope["call"]()
    assert isinstance(frame, FrameType)
    return frame


def inductors(_: Path) -> FrameType:
    return in_cache(Path("/tmp/torchinductor_me"))


def moved(tmp_path: Path) -> FrameType:
    return in_cache(tmp_path)


@pytest.mark.parametrize("stand", [lambda _: Made().frame, inductors, moved], ids=["dataclass", "inductor", "moved"])
def test_code_that_a_library_has_written_is_shown_at_the_users_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand: Callable[[Path], FrameType]
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["train.py", "-c", "small.yaml"])
    notes: list[dict[str, Any]] = []
    Frames(lambda _, **facts: notes.append(facts)).place(stand(tmp_path))
    assert [note["file"] for note in notes] == [__file__]
