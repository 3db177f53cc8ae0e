"""Lightning's and Hugging Face's own loops, as their users write them."""

from pathlib import Path

import pytest

from cli.doctor_program import Done, doctor, script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def is_named(done: Done) -> None:
    assert done.code == 0, done.stderr
    assert sum(phase["share"] for phase in done.report["phases"]) == pytest.approx(1, abs=1e-3)
    roles = {loader["role"] for loader in done.report["loaders"]}
    assert roles == {"train", "validation"}
    assert done.report["steps_per_epoch"] == 40
    assert done.report["epochs"] == 2
    assert done.report["prediction"]["epoch_s"] > 0
    for phase in ("data_wait", "forward", "backward", "optimizer", "validation"):
        assert done.seconds(phase) > 0, phase


def test_lightning(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    mine = tmp_path / "checkpoints" / "epoch=1-step=80.ckpt"
    mine.write_text("precious")
    done = doctor(tmp_path, *script("lightning_loop.py"))
    is_named(done)
    assert done.report["steps"] == 80
    assert mine.read_text() == "precious"


def test_hugging_face(tmp_path: Path) -> None:
    mine = tmp_path / "out" / "checkpoint-40" / "model.safetensors"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    done = doctor(tmp_path, *script("hf_loop.py"))
    is_named(done)
    assert done.report["steps"] == 80  # two batches for each of the optimizer's steps
    assert done.seconds("checkpoint") > 0
    assert mine.read_text() == "precious"
