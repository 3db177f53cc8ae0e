"""A file that is synced is a log, or a part of the checkpoint that was just saved."""

import os
from pathlib import Path

import torch

from stoker.observe.options import Options
from stoker.observe.pace import Pace
from stoker.observe.patches import Patches
from stoker.observe.recorder import Recorder
from stoker.observe.saves import Saves
from stoker.records.observed import Kind


def test_a_sync_belongs_to_the_checkpoint_before_it_or_is_a_log(tmp_path: Path) -> None:
    recorder, patches = Recorder(tmp_path), Patches()
    pace = Pace(Options(whole=True), recorder, tmp_path)
    saves = Saves(recorder, tmp_path, patches, pace, None)
    original = os.fsync
    saves.install(torch)
    saves.watch_syncs()
    with (tmp_path / "file").open("wb") as file:
        os.fsync(file.fileno())
        torch.save({}, file)
        os.fsync(file.fileno())
        pace.backwards += 1
        os.fdatasync(fd=file.fileno())  # as the script may call it
    kinds = [Kind(code >> 1) for code in recorder.events[1::2] if not code & 1]
    assert kinds == [Kind.LOG, Kind.SAVE, Kind.SAVE, Kind.LOG]
    patches.restore()
    assert os.fsync is original
