import ast
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from planted import launch, suite
from planted.launch import Launcher

SCRIPTS = [(planted, which) for planted in suite.PLANTED for which in ("slow", "healthy")]
NAMES = [f"{planted.cause}-{which}" for planted, which in SCRIPTS]


@pytest.fixture(scope="module")
def run() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


@pytest.fixture
def scratch() -> Iterator[Path]:
    # Not below tmp_path: workers open sockets here, and the name of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_every_cause_of_the_closed_list_is_planted_once() -> None:
    causes = [planted.cause for planted in suite.PLANTED]
    assert len(causes) == len(set(causes)) == 34
    folders = {path.parent.name for path in suite.HERE.glob("*/slow.py")}
    assert folders == {cause.replace("-", "_") for cause in causes}
    assert all(planted.evidence for planted in suite.PLANTED)


def test_cases_are_slow_and_healthy_at_two_scales() -> None:
    cases = list(suite.cases())
    for planted in suite.PLANTED:
        mine = [case for case in cases if case.cause == planted.cause]
        assert len(mine) == (4 if planted.needs() is None else 2)
        for case in mine:
            assert case.script.exists()
            assert case.expected == ({planted.cause} if case.which == "slow" else suite.WELL)
            assert not case.expected & case.forbidden


@pytest.mark.parametrize(("planted", "which"), SCRIPTS, ids=NAMES)
def test_a_script_knows_nothing_of_stoker_but_the_simulation_and_names_no_cause(
    planted: suite.Planted, which: suite.Which
) -> None:
    tree = ast.parse(planted.script(which).read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stoker"):
            assert (node.module, [alias.name for alias in node.names]) == ("stoker", ["sim"])
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("stoker") for alias in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    assert planted.cause.replace("-", "_") not in {name.lower() for name in names}


@pytest.mark.slow
@pytest.mark.parametrize(("planted", "which"), SCRIPTS, ids=NAMES)
def test_a_script_helps_runs_and_leaves_nothing_behind(
    run: Launcher, planted: suite.Planted, which: suite.Which, tmp_path: Path, scratch: Path
) -> None:
    output = tmp_path / "output"
    job = {"script": str(planted.script(which)), "tmpdir": str(scratch), "output": str(output)}
    assert run(**job, arguments=["--help"])["code"] == 0
    assert all(option in output.read_text() for option in ("--scale", "--steps", "--epochs", "--data"))

    done = run(**job, arguments=["--scale", "small", "--steps", "2", "--epochs", "1"])
    assert done["code"] == 0, output.read_text()
    assert re.search(r"^2 steps in [\d.]+ s$", output.read_text(), re.MULTILINE)
    deadline = time.monotonic() + 20  # a worker that was told to end may need a moment on a busy machine
    while (left := launch.session(done["leader"])) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == set()
    # Importing an optimizer makes torch itself create the folder of its compiler's cache, and where workers need more
    # than five seconds to end it terminates them, so that multiprocessing's own folder stays.
    foreign = ("torchinductor_", "pymp-")
    assert [path for path in scratch.iterdir() if not path.name.startswith(foreign)] == []
    assert [path for path in Path("/dev/shm").iterdir() if any(f"_{pid}_" in path.name for pid in done["pids"])] == []
