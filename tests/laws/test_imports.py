"""A module knows what is to its left on its own arrow, and the foundations; nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from laws import import_law as law

SRC = Path(__file__).parents[2] / "src" / "stoker"


def test_the_package_keeps_the_import_law() -> None:
    assert len(law.modules(SRC)) > 5
    assert law.violations(SRC) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("loader/order.py", "from stoker.observe import attach"),
        ("loader/order.py", "import stoker.loader.deliver"),
        ("attribute.py", "from stoker.diagnose import rules"),
        ("attribute.py", "def f():\n    from stoker.report import html"),
        ("records.py", "from stoker import knobs"),
        ("sim/device.py", "from stoker.loader import order"),
        ("decide.py", "from stoker.commands import main"),
    ],
)
def test_a_forbidden_import_is_seen(tmp_path: Path, file: str, line: str) -> None:
    rooms = ["observe", "diagnose", "report", "commands", "loader", "sim", "trial"]
    for room in rooms:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("")
    for name in [
        "loader/order.py",
        "loader/deliver.py",
        "knobs.py",
        "records.py",
        "attribute.py",
        "decide.py",
    ]:
        (tmp_path / name).write_text("")
    assert law.violations(tmp_path) == []
    (tmp_path / file).write_text(line)
    assert law.violations(tmp_path) != []


def test_a_cycle_is_seen(tmp_path: Path) -> None:
    (tmp_path / "sim").mkdir()
    (tmp_path / "sim" / "a.py").write_text("from stoker.sim import b")
    (tmp_path / "sim" / "b.py").write_text("from stoker.sim.a import thing")
    assert any("cycle" in found for found in law.violations(tmp_path))


def test_a_room_that_is_not_in_the_design_is_seen(tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("")
    with pytest.raises(AssertionError, match="no place in the design"):
        law.violations(tmp_path)


def test_import_stoker_loads_nothing_heavy() -> None:
    heavy = ["torch", "pyarrow", "altair", "numpy", "rich"]
    code = f"import sys, stoker; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_exist_and_are_few() -> None:
    import stoker

    assert len(stoker.__all__) <= 15
    for name in stoker.__all__:
        assert getattr(stoker, name) is not None
    with pytest.raises(AttributeError, match=r"it has .*errors"):
        stoker.nothing  # noqa: B018


def test_what_runs_inside_the_users_process_needs_no_library(tmp_path: Path) -> None:
    """Stoker may live in an environment of its own; the script's has torch at best."""
    others = ("psutil", "click", "rich", "pyarrow", "jinja2", "pynvml", "numpy", "torch")
    code = f"import sys; sys.modules.update(dict.fromkeys({others}))\n"
    code += "import stoker.observe.child, stoker.observe.probe, stoker.observe.replayed"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
