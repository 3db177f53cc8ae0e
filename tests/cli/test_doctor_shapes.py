"""Loops differ. Each shape is found, or honestly not."""

import tempfile
from pathlib import Path

import pytest

from cli.doctor_program import WATCHING, Done, doctor, script

STEPS = 30


def run(tmp_path: Path, shape: str, *options: str) -> Done:
    done = doctor(tmp_path, *script("plain.py", shape), options=options)
    if done.report:
        assert sum(phase["share"] for phase in done.report["phases"]) == pytest.approx(1, abs=1e-3)
    return done


@pytest.mark.parametrize(
    "shape",
    ["plain", "by_hand", "thread", "hard_exit", "fork", "accumulation", "two_optimizers", "two_loaders", "scaler"],
)
def test_a_step_is_a_step_in_every_loop(tmp_path: Path, shape: str) -> None:
    done = run(tmp_path, shape)
    assert done.code == 0, done.stderr
    assert abs(done.report["steps"] - STEPS) <= 1
    assert done.seconds("backward") > 0
    assert done.seconds("forward") > 0
    assert done.report["steps_per_epoch"] == STEPS


def test_a_loop_with_its_own_loader_waits_in_the_gap_before_forward(tmp_path: Path) -> None:
    done = run(tmp_path, "own_loader")
    assert done.code == 0, done.stderr
    assert abs(done.report["steps"] - STEPS) <= 1
    assert done.seconds("data_wait") >= 0.9 * (STEPS - 1) * 0.02
    assert "gap before the forward pass" in done.stderr
    assert done.report["steps_per_epoch"] is None
    assert done.report["prediction"] is None


def test_validation_is_known_without_no_grad(tmp_path: Path) -> None:
    done = run(tmp_path, "eval_without_no_grad")
    assert done.report["steps"] == 2 * STEPS
    assert done.seconds("validation") >= 2 * 15 * 0.01
    roles = [loader["role"] for loader in done.report["loaders"]]
    assert roles.count("train") == 1
    assert set(roles) == {"train", "validation"}


@pytest.mark.slow
def test_a_compiled_model_stays_one_graph(tmp_path: Path) -> None:
    done = run(tmp_path, "compiled")  # fullgraph=True would raise on a break
    assert done.code == 0, done.stderr
    assert done.report["steps"] == STEPS
    assert done.seconds("forward") > 0


def test_a_daemon_is_followed(tmp_path: Path) -> None:
    done = run(tmp_path, "daemon")
    assert done.code == 0, done.stderr
    assert done.report["steps"] == STEPS


@pytest.mark.parametrize("shape", ["stubborn", "forever"])
def test_a_script_without_an_end_is_ended(tmp_path: Path, shape: str) -> None:
    done = run(tmp_path, shape, "--budget", "8", *WATCHING)
    assert done.code == 0, done.stderr
    assert done.report["steps"] > STEPS
    assert "ended when enough" in done.stderr


def test_workers_that_are_ended_with_the_run_leave_no_folder_behind(tmp_path: Path) -> None:
    words, options = script("plain.py", "hired"), ("--budget", "4", *WATCHING)
    with tempfile.TemporaryDirectory() as folder:  # a short name: a socket's whole path has 107 letters at most
        done = doctor(tmp_path, *words, options=options, env={"TMPDIR": folder})
        left = [path.name for path in Path(folder).iterdir() if path.name.startswith("pymp-")]
    assert done.code == 0, done.stderr
    assert "ended when enough" in done.stderr
    assert left == []


def test_steps_cut_every_epoch(tmp_path: Path) -> None:
    done = run(tmp_path, "forever", "--steps", "10", "--budget", "8", *WATCHING)
    assert done.code == 0, done.stderr
    assert done.report["steps_per_epoch"] == STEPS
    epochs = done.report["epochs"]
    assert 10 * (epochs - 1) < done.report["steps"] <= 10 * epochs  # the budget may end the last one earlier
    prediction = done.report["prediction"]
    assert prediction["low_s"] <= prediction["epoch_s"] <= prediction["high_s"]
    assert prediction["epoch_s"] > 0.9 * STEPS * 0.002


def test_a_loop_that_calls_next_by_hand_is_left_whole(tmp_path: Path) -> None:
    done = run(tmp_path, "by_hand", "--steps", "10")
    assert done.code == 0, done.stderr
    assert done.stdout == "all by hand\n"
    assert done.report["steps"] in (STEPS - 1, STEPS)
