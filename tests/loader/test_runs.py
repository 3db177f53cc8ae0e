"""Gathers of byte runs: compiled, and as they are done where there is no compiler."""

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.loader.source import runs
from stoker.loader.source.runs import Memory

ROOT = Path(__file__).parents[2]
DATA = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 5000, np.uint8))
MEMORY = Memory(DATA.data_ptr(), DATA.data_ptr() + DATA.numel())


@pytest.fixture(params=["compiled", "not compiled"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "not compiled":
        monkeypatch.setattr(runs, "_copy_runs", None)
        monkeypatch.setattr(runs, "_copy_parts", None)
    elif runs._copy_runs is None:
        pytest.skip("no C compiler was there when Stoker was installed")
    return str(request.param)


@pytest.mark.usefixtures("how")
class TestBothWays:
    @given(st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 1000)), max_size=40))
    def test_runs_come_one_after_the_other(self, wanted: list[tuple[int, int]]) -> None:
        begins = np.array([begin for begin, _ in wanted], np.int64)
        sizes = np.array([size for _, size in wanted], np.int64)
        out = torch.empty(int(sizes.sum()), dtype=torch.uint8)
        MEMORY.ragged(begins + MEMORY.low, sizes, out)
        expected = [DATA[begin : begin + size] for begin, size in wanted]
        assert torch.equal(out, torch.cat(expected) if expected else out)

    @given(
        st.lists(st.integers(0, 4000), max_size=20),
        st.lists(st.tuples(st.integers(0, 500), st.integers(1, 400)), min_size=1, max_size=5),
    )
    def test_parts_of_rows_go_to_tensors_of_their_own(self, rows: list[int], parts: list[tuple[int, int]]) -> None:
        offsets, sizes = np.array(parts, np.int64).T.copy()
        outs = [torch.empty((len(rows), size), dtype=torch.uint8) for _, size in parts]
        MEMORY.parts(np.array(rows, np.int64) + MEMORY.low, offsets, sizes, outs)
        for (offset, size), out in zip(parts, outs, strict=True):
            for row, found in zip(rows, out, strict=True):
                assert torch.equal(found, DATA[row + offset : row + offset + size])

    def test_what_does_not_lie_side_by_side_is_gathered_too(self) -> None:
        begins, sizes = np.arange(0, 400, 20)[::2] + MEMORY.low, np.full(40, 7)[::4]
        out = torch.empty(70, dtype=torch.uint8)
        MEMORY.ragged(begins, sizes, out)
        assert torch.equal(out.view(10, 7), torch.stack([DATA[at : at + 7] for at in range(0, 400, 40)]))


def test_without_a_compiler_stoker_is_installed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = tmp_path / "project"
    for name in ("src/stoker/loader/source/runs.c", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        (copied / name).parent.mkdir(parents=True, exist_ok=True)
        (copied / name).write_bytes((ROOT / name).read_bytes())
    (copied / "examples").mkdir()
    monkeypatch.setenv("CC", "no-such-compiler")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=copied, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    assert not any("libruns" in name for name in zipfile.ZipFile(wheel).namelist())
