"""How many epochs a script means to run is read from its own loop, whatever its variables are called."""

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from stoker.observe.epochs import Planned, planned


class Loader:
    """What a script goes over; a pass over it begins where DataLoader's does."""

    def __init__(self, is_users: Callable[[CodeType], bool]) -> None:
        self.found: list[Planned | None] = []
        self._is_users = is_users

    def __iter__(self) -> Any:
        self.found.append(planned(sys._getframe(1), self._is_users))
        return iter(range(3))


def look(tmp_path: Path, code: str, library: str = "", **names: Any) -> list[Planned | None]:
    """What is found at each pass of a script; `library` is what it imports from."""
    script, other = tmp_path / "script.py", tmp_path / "library.py"
    script.write_text(code)
    other.write_text(library)
    loader = Loader(lambda code: code.co_filename == str(script))
    space = {"loader": loader, **names}
    exec(compile(library, other, "exec"), space)
    exec(compile(code, script, "exec"), space)
    return loader.found


IN_FUNCTION = """
def one_epoch(loader, epoch):
    for batch in loader:
        pass
def main(n, start):
    for epoch in range(start, n + 1):
        one_epoch(loader, epoch)
main(9, 1)
"""
PHASES = """
for epoch in range(4):
    for phase in ["train", "val"]:
        for batch in loader:
            pass
"""
COMPREHENSION = """
for e in range(6):
    losses = [x for x in loader]
"""
MULTILINE = """
for epoch in range(
    first,
    last,
):
    for batch in enumerate(
        loader
    ):
        pass
"""


class Slotted:
    __slots__ = ("rounds",)

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds


class Settings:
    rounds = 8


@pytest.mark.parametrize(
    ("code", "names", "count"),
    [
        ("for epoch in range(5):\n    for batch in loader: pass\n", {}, 5),
        ("for _ in range(a.n):\n    for batch in loader: pass\n", {"a": Namespace(n=7)}, 7),
        ("for _ in range(a.b.n):\n    for batch in loader: pass\n", {"a": SimpleNamespace(b=Namespace(n=7))}, 7),
        ("for _ in range(a.rounds):\n    for batch in loader: pass\n", {"a": Slotted(6)}, 6),
        ("for _ in range(a.rounds):\n    for batch in loader: pass\n", {"a": Settings()}, 8),
        ("for e in range(c['t']['n']):\n    for batch in loader: pass\n", {"c": {"t": {"n": 3}}}, 3),
        ("for e in range(int(c['n'])):\n    for batch in loader: pass\n", {"c": {"n": "12"}}, 12),
        ("for e in range(len(sizes)):\n    for batch in loader: pass\n", {"sizes": [32, 64]}, 2),
        ("for e in bar(range(5), 'x'):\n    for batch in loader: pass\n", {"bar": lambda of, _: of}, 5),
        ("for e in trange(5, desc='x'):\n    for batch in loader: pass\n", {"trange": lambda n, desc: range(n)}, 5),
        ("for e in todo:\n    for batch in loader: pass\n", {"todo": range(2, 6)}, 4),
        (IN_FUNCTION, {}, 9),
        (PHASES, {}, 4),
        (COMPREHENSION, {}, 6),
        (MULTILINE, {"first": 2, "last": 12}, 10),
        ("n = epochs = 50\nfor e in range(10, epochs):\n    for batch in loader: pass\n", {}, 40),
        ("num_epochs = 5\ne = 0\nwhile e < num_epochs:\n    e += 1\n    for batch in loader: pass\n", {}, 5),
        ("for e in range(2):\n    it = iter(loader)\n    for _ in range(3):\n        next(it)\n", {}, 2),
    ],
)
def test_epochs_are_read_from_the_loop(tmp_path: Path, code: str, names: dict[str, Any], count: int) -> None:
    found = look(tmp_path, code, **names)
    assert found
    assert all(one is not None and one.count == count and not one.is_steps for one in found)


FOREVER = """
def forever(loader):
    while True:
        yield from loader
it = forever(loader)
for step in range(7):
    batch = next(it)
"""
ASKED_AGAIN = """
it = iter(loader)
for step in range(7):
    try:
        batch = next(it)
    except StopIteration:
        it = iter(loader)
        batch = next(it)
"""


def test_a_loop_that_goes_on_over_passes_counts_steps(tmp_path: Path) -> None:
    assert look(tmp_path, FOREVER) == [Planned(7, "range(7)", is_steps=True)] * 3
    assert look(tmp_path, ASKED_AGAIN) == [None, *[Planned(7, "range(7)", is_steps=True)] * 2]


def test_a_pass_for_one_batch_only_is_a_step(tmp_path: Path) -> None:
    found = look(tmp_path, "for step in range(2):\n    batch = next(iter(loader))\n")
    assert found == [Planned(2, "range(2)", is_steps=True)] * 2


def test_a_generator_that_only_passes_batches_on_is_none_of_the_loops(tmp_path: Path) -> None:
    code = "def moved():\n    for x in loader:\n        yield x\nfor e in range(4):\n    for x in moved(): pass\n"
    assert {one.count for one in look(tmp_path, code) if one and not one.is_steps} == {4}


@pytest.mark.parametrize(
    "code",
    [
        "while go.pop():\n    for batch in loader: pass\n",
        "for r in range(2):\n    for e in range(sum(go)):\n        for batch in loader: pass\n",
        "for e in go:\n    for batch in loader: pass\n",
    ],
)
def test_what_does_not_say_how_often_is_not_known(tmp_path: Path, code: str) -> None:
    assert set(look(tmp_path, code, go=[0, 1, 1])) == {None}


def test_none_of_the_scripts_code_is_run_to_find_out(tmp_path: Path) -> None:
    class Holder:
        calls = 0

        @property
        def n(self) -> int:
            self.calls += 1
            return 3

    holder = Holder()
    assert look(tmp_path, "for e in range(holder.n):\n    for batch in loader: pass\n", holder=holder) == [None] * 3
    assert holder.calls == 1


def test_a_trainer_says_it_by_its_own_name_inside_a_loop_of_the_script(tmp_path: Path) -> None:
    library = "class Trainer:\n    def fit(self, max_epochs):\n        while max_epochs:\n            max_epochs -= 1\n"
    library += "            [x for x in loader]\n"
    found = look(tmp_path, "for fold in range(5):\n    Trainer().fit(2)\n", library)
    assert found[::2] == [Planned(1, "max_epochs")] * 5
