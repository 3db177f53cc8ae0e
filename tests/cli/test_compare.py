"""`stoker compare` on real runs, and what it may conclude from steps."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.doctor_program import WATCHING, doctor, script
from stoker.decide import APART, conclude, contrast


def steps(seed: int, mean_s: float, spread: float, count: int = 200) -> list[float]:
    return list(mean_s * np.random.default_rng(seed).lognormal(0, spread, count))


@pytest.mark.parametrize("count", [20, 60, 300])
@pytest.mark.parametrize("spread", [0.01, 0.1, 0.6])
def test_two_runs_of_the_same_are_told_apart_once_in_forty_at_most(spread: float, count: int) -> None:
    pairs = [(steps(2 * i, 0.1, spread, count), steps(2 * i + 1, 0.1, spread, count)) for i in range(200)]
    wrong = sum(1 for a, b in pairs if conclude(a, b)[1] in ("faster", "slower"))
    assert wrong <= 200 / 40


@given(st.integers(0, 10_000), st.floats(1.3, 4))
@settings(max_examples=80)
def test_a_clear_difference_is_told_in_both_directions(seed: int, factor: float) -> None:
    slow, fast = steps(seed, 0.1 * factor, 0.05), steps(seed + 1, 0.1, 0.05)
    speed, outcome, _ = conclude(slow, fast)
    assert outcome == "faster"
    assert speed is not None
    assert speed.low < factor * 1.02  # an interval of 95 % may miss, but not by much
    assert speed.high > factor / 1.02
    assert conclude(fast, slow)[1] == "slower"


def test_a_small_difference_is_not_told_however_exact_the_steps_are() -> None:
    speed, outcome, reason = conclude([0.1] * 500, [0.1 / (1 + APART / 2)] * 500)
    assert outcome == "alike"
    speed, outcome, reason = conclude(steps(1, 0.1, 0.02, 4000), steps(2, 0.1 / (1 + APART), 0.02, 4000))
    assert outcome == "undecided"
    assert "no larger than two runs" in reason
    assert speed is not None


def test_few_steps_and_steps_that_vary_are_said_to_be_so() -> None:
    assert conclude([0.1] * 5, [0.2] * 500)[2].startswith("5 steady steps are too few")
    assert "vary too much" in conclude(steps(1, 0.1, 1.5, 30), steps(2, 0.1, 1.5, 30))[2]


def test_a_run_that_drifts_has_a_wide_interval() -> None:
    even, drifting = [0.1] * 200, [0.08 + 0.0002 * i for i in range(200)]
    assert contrast(even, drifting).high / contrast(even, drifting).low > 1.15
    assert contrast(even, even).high == pytest.approx(contrast(even, even).low)


def compare(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stoker", "compare", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_what_was_set_differently_is_named(tmp_path: Path) -> None:
    doctor(tmp_path, *script("known_times.py", "0"), options=WATCHING)
    (first,) = (path.name for path in (tmp_path / ".stoker" / "runs").iterdir())
    doctor(tmp_path, *script("known_times.py", "2"), options=WATCHING)
    done = compare(tmp_path, first, "last", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    changed = {one["name"]: (one["a"], one["b"]) for one in found["settings"]}
    assert changed["loader num_workers"] == (0, 2)
    assert set(changed) == {"command", "loader num_workers", "loader prefetch_factor"}
    assert found["outcome"] in ("faster", "slower", "alike", "undecided")
    assert {one["name"] for one in found["figures"]} >= {"mean steady step", "host memory", "samples"}
    assert {one["name"] for one in found["phases"]} >= {"data_wait", "forward", "backward"}
    said = compare(tmp_path, first, "last")
    assert said.returncode == 0
    assert "loader num workers" in said.stdout
    same = json.loads(compare(tmp_path, first, first, "--json", "-").stdout)
    assert (same["outcome"], same["settings"]) in (("alike", []), ("undecided", []))


def test_a_run_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    done = compare(tmp_path, "one", "other")
    assert done.returncode == 2
    assert "no run is called one" in done.stderr
