import sqlite3
from pathlib import Path

import pytest

from stoker.errors import UsageError
from stoker.ledger import Ledger


def test_a_run_is_found_by_name_by_its_start_and_as_last(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / ".stoker")
    first = ledger.open_run(["python", "a.py"])
    second = ledger.open_run(["python", "b.py"])
    assert first.run != second.run
    assert ledger.find(first.run).resolve() == first.directory.resolve()
    assert ledger.find("last").resolve() == second.directory.resolve()
    assert [row.command for row in ledger.runs()] == [("python", "b.py"), ("python", "a.py")]


def test_a_run_has_a_state_until_it_is_closed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    row = ledger.open_run(["x"])
    assert ledger.runs()[0].state == "running"
    ledger.close_run(row.run, "done", "healthy", None)
    assert (ledger.runs()[0].state, ledger.runs()[0].verdict) == ("done", "healthy")


def test_the_store_is_in_wal_mode_and_hidden_from_git(tmp_path: Path) -> None:
    Ledger(tmp_path).open_run(["x"])
    mode = sqlite3.connect(tmp_path / "ledger.db").execute("pragma journal_mode").fetchone()
    assert mode == ("wal",)
    assert (tmp_path / ".gitignore").read_text() == "*\n"


def test_a_broken_record_is_a_run_that_says_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    row = ledger.open_run(["x"])
    for name, text in {"torn": '{"command": ["a', "empty": "{}", "list": "[1]", "numbers": '{"command": 3}'}.items():
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "run.json").write_text(text)
    rows = {one.run: one for one in ledger.runs()}
    assert rows[row.run].state == "running"
    assert {rows[name].state for name in ("torn", "empty", "list", "numbers")} == {"broken"}
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        database.execute("update runs set command = 'not json'")
    assert next(one for one in ledger.runs() if one.run == row.run).command == ("not json",)


def test_a_bench_is_kept_and_read_without_writing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.benches() == []
    assert not (tmp_path / "ledger.db").exists()
    ledger.add_bench(["a/*.npy"], '{"rows": 3}')
    ledger.add_bench(["b"], "{}")
    assert [(row.data, row.record) for row in ledger.benches()] == [(("b",), "{}"), (("a/*.npy",), '{"rows": 3}')]


def test_a_ledger_of_an_older_version_is_read(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        database.execute("create table other (x)")
    assert Ledger(tmp_path).runs() == []
    assert Ledger(tmp_path).benches() == []


def test_a_ledger_that_is_held_by_another_is_told_soon(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.open_run(["x"])
    with sqlite3.connect(tmp_path / "ledger.db", isolation_level=None) as holder:
        holder.execute("pragma locking_mode = exclusive")
        holder.execute("begin exclusive")
        holder.execute("update runs set verdict = 'x'")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            ledger.runs(patience_s=0.1)
        assert ledger.loose() == []
    holder.close()


def test_an_index_that_cannot_be_written_is_said_once_and_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".stoker").write_text("a file")
    ledger = Ledger(tmp_path / ".stoker")
    row = ledger.open_run(["x"], tmp_path / "out")
    ledger.add_trial(row.run, 1, "keep", "{}")
    ledger.close_run(row.run, "done", None, None)
    assert list(row.directory.iterdir()) == []
    assert capsys.readouterr().err.count("no index of runs") == 1
    with pytest.raises(UsageError, match="--out DIR"):
        ledger.open_run(["x"])
    with pytest.raises(UsageError, match="cannot be written"):
        ledger.add_bench(["a"], "{}")


def test_an_unknown_run_names_the_known_ones(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    row = ledger.open_run(["x"])
    with pytest.raises(UsageError, match=f"no run is called nope; known runs: {row.run}"):
        ledger.find("nope")


def test_a_directory_that_holds_something_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        Ledger(tmp_path / ".stoker").open_run(["x"], tmp_path / "full")
