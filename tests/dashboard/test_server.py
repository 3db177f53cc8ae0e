"""A real server over strange and large ledgers."""

import json
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.made import BENCH, hold, index, write_run, write_tuning
from dashboard.server import Server
from report.tunings import tuning
from stoker.errors import UsageError
from stoker.ledger import Ledger
from stoker.records import encode

pytestmark = pytest.mark.slow
MANY = 500


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ordinary runs, and one of each kind of trouble."""
    place = tmp_path_factory.mktemp("kept") / ".stoker"
    for name, command in {"first": ("python", "train.py"), "second": ("python", "train.py", "--lr", "0.1")}.items():
        index(place, name, write_run(place, name, command=command), command, "done", "too-few-workers")
    write_tuning(place, "tuned")
    Ledger(place).add_bench(["shards/*.npy"], json.dumps(BENCH))
    Ledger(place).add_bench(["broken"], '{"rows": ')
    index(place, "deleted", place / "runs" / "deleted", ("python", "gone.py"), "done")
    outside = write_run(place.parent / "elsewhere", "outside")
    index(place, "outside", outside, ("python", "outside.py"), "done")
    (place / "runs" / "sneaky").symlink_to(outside)
    index(place, "sneaky", place / "runs" / "sneaky", ("python", "sneaky.py"), "done")
    torn = write_run(place, "torn")
    (torn / "run.json").write_text('{"command": ["pyth')
    for name in ("rubbish-events", "rubbish-notes", "rubbish-meters"):
        directory = write_run(place, name)
        if name == "rubbish-notes":
            next(directory.glob("*.notes")).write_text('{"note": "loader", "t": 3}\n{"note": 7}\n')
        else:
            path = next(directory.glob("*.events")) if name == "rubbish-events" else directory / "meters.jsonl"
            path.write_bytes(bytes(range(256)) * 99)
        index(place, name, directory, ("python", "x.py"), "done")
    broken = write_tuning(place, "tuned-broken")
    (broken / "tuning.json").write_text('{"reference": 3}')
    return place


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with Server(home) as started:
        yield started


def test_only_loopback_listens(server: Server) -> None:
    assert server.origin.startswith("http://127.0.0.1:")
    port = int(server.origin.rpartition(":")[2])
    own = socket.gethostbyname(socket.gethostname())
    if not own.startswith("127."):
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((own, port), timeout=2)


def test_without_the_token_or_under_another_name_nothing_is_told(server: Server) -> None:
    for path in ("/", "/run/first", "/static/ui.js", "/events", "/wrong-token-wrong-token/"):
        answer = server.get(path, bare=True)
        assert answer.status == 403
        assert "first" not in answer.text
    assert server.get("/", host="evil.example").status == 421
    assert server.get("/", host="").status in (400, 421)
    assert server.get("/", method="POST").status == 405


def test_the_token_is_kept_for_its_owner_only_and_is_in_no_log(server: Server, home: Path) -> None:
    path = home / "ui-token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = path.read_text().strip()
    assert server.root == f"/{token}"
    assert len(token) >= 32
    assert server.said.count(token) == 1


def test_every_run_is_listed_each_with_its_state(server: Server) -> None:
    text = server.get("/").text
    states = dict(re.findall(r'data-run="([\w-]+)".*?class="state ?(?:\w*)">([\w ]+)<', text, re.DOTALL))
    assert states["first"] == states["second"] == "done"
    assert states["tuned"] == "tuning"
    assert states["torn"] == "broken"
    assert states["deleted"] == states["outside"] == states["sneaky"] == "not here"


@pytest.mark.parametrize(
    ("run", "status", "said"),
    [
        ("deleted", 410, "its directory was deleted"),
        ("outside", 410, "its records lie elsewhere"),
        ("sneaky", 410, "its records lie elsewhere"),
        ("torn", 410, "its record is broken"),
        ("tuned-broken", 422, "The record of this run is broken"),
        ("nothing", 404, "There is no such run"),
        ("..%2f..%2fetc", 404, "There is no such"),
        ("first/../../../etc/passwd", 404, "There is no such"),
        ("%00", 404, "There is no such"),
        ("First", 404, "There is no such run"),
        ("fir", 404, "There is no such run"),
    ],
)
def test_what_cannot_be_shown_says_why_and_the_page_works(server: Server, run: str, status: int, said: str) -> None:
    answer = server.get(f"/run/{run}")
    assert (answer.status, said in answer.text) == (status, True), answer.text
    assert "root:" not in answer.text
    assert f'href="{server.root}/"' in answer.text


@pytest.mark.parametrize("run", ["rubbish-events", "rubbish-notes", "rubbish-meters"])
def test_rubbish_in_a_record_is_no_fault_of_the_page(server: Server, run: str) -> None:
    ready = server.get(f"/run/{run}/ready")
    assert ready.status in (200, 422), ready.text
    assert server.get(f"/run/{run}").status in (200, 422)


def test_an_ended_run_is_read_once_and_then_shown(server: Server) -> None:
    assert "Reading the run" in server.get("/run/second").text
    assert server.get("/run/second/ready").status == 200
    text = server.get("/run/second").text
    assert "Where a step&#39;s time goes" in text
    assert "Configuration and hardware" in text


def test_a_decision_is_shown_with_its_record(server: Server) -> None:
    text = server.get("/run/tuned").text
    assert "num_workers is kept" in text
    assert "Each trial against the noise" in text


def test_a_tuning_that_goes_on_shows_what_it_has_tried(server: Server, home: Path) -> None:
    (home / "runs" / "trying").mkdir()
    index(home, "trying", home / "runs" / "trying", ("python", "t.py"), "running")
    assert "Nothing has been tried yet" in server.get("/run/trying").text
    for number, trial in enumerate(tuning().trials):
        Ledger(home).add_trial("trying", number, trial.decision, json.dumps(encode(trial)))
    Ledger(home).add_trial("trying", 9, "keep", "{broken")
    text = server.get("/run/trying").text
    assert "A tuning that goes on" in text
    assert "inside the noise" in text


def test_two_runs_are_compared_the_older_one_first(server: Server) -> None:
    text = server.get("/compare?run=second&run=first").text
    assert re.search(r"<dt>A</dt><dd><a [^>]*>first</a>", text)
    assert "Set differently" in text
    assert "--lr 0.1" in text
    for query in ("", "?run=first", "?run=first&run=second&run=torn"):
        assert server.get(f"/compare{query}").status == 400
    assert server.get("/compare?run=first&run=deleted").status == 404
    assert server.get("/compare?run=first&run=../first").status == 404


def test_benches_are_shown_and_a_broken_one_says_so(server: Server) -> None:
    text = server.get("/data").text
    assert "shards/*.npy" in text
    assert "9,000,000 samples/s" in text
    assert "this record is broken" in text


def test_only_our_own_files_are_served(server: Server) -> None:
    for name in ("ui.js", "ui.css", "page.js", "page.css", "vega.js"):
        assert server.get(f"/static/{name}").status == 200
    for name in ("app.py", "..%2fapp.py", "../guard.py", "ui-token", "/etc/passwd", "page.html.jinja"):
        assert server.get(f"/static/{name}").status == 404
    assert "javascript" in server.get("/static/ui.js").headers["content-type"]


def test_a_locked_ledger_is_said_and_what_has_a_directory_is_shown(server: Server, home: Path) -> None:
    holder = hold(home)
    try:
        text = server.get("/").text
        assert "The ledger cannot be read now" in text
        assert 'data-run="first"' in text
        assert server.get("/data").status == 200
        assert server.get("/run/first").status == 200
    finally:
        holder.rollback()
        holder.close()
    assert "cannot be read now" not in server.get("/").text


def test_a_run_that_vanishes_while_it_is_watched_ends_the_stream(server: Server, home: Path) -> None:
    directory = write_run(home, "vanishing", over=False, age_s=0)
    with server.events("/run/vanishing/events") as stream:
        assert stream.readline() == b"event: live\n"
        shutil.rmtree(directory)
        lines = [line for line in stream if line.startswith(b"event:")]
    assert lines[-1] in (b"event: over\n", b"event: broken\n")
    assert server.get("/").status == 200


def test_ctrl_c_ends_it_at_once_also_while_somebody_watches(home: Path) -> None:
    with Server(home) as server, server.events("/events") as stream:
        assert stream.readline() == b"event: runs\n"
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < 30
    assert "has ended" in server.said
    assert "Traceback" not in server.said


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "stoker", "ui", "--port", str(port)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"port {port} cannot be taken" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_many_runs_and_a_long_one(tmp_path: Path) -> None:
    home = tmp_path / ".stoker"
    write_run(home, "long", steps=100_000, step_ms=0.2, over=False, age_s=0)  # no longer than this machine is up
    with Ledger(home)._database() as database:
        rows = [
            (f"run-{i:04}", f"{home}/runs/run-{i:04}", '["python", "train.py"]', float(i), "done")
            for i in range(MANY + 100)
        ]
        sql = "insert into runs (run, directory, command, started_s, state) values (?, ?, ?, ?, ?)"
        database.executemany(sql, rows)
    with Server(home) as server:
        listed = server.get("/").text
        assert listed.count("data-run=") == MANY
        assert "101 older runs are not listed" in listed
        page = server.get("/run/long")
        assert page.status == 200
        assert "<dd>1000 of 200" in page.text  # epochs
        assert len(page.text) < 400_000
        with server.events("/run/long/events") as stream:
            assert stream.readline() == b"event: live\n"
            assert len(stream.readline()) < 200_000


def test_an_empty_place_says_how_to_begin(tmp_path: Path) -> None:
    with Server(tmp_path / ".stoker") as server:
        assert "No runs yet" in server.get("/").text
        assert "Nothing measured yet" in server.get("/data").text
    assert not (tmp_path / ".stoker" / "ledger.db").exists()


def test_a_ledger_that_is_no_database_is_said(tmp_path: Path) -> None:
    home = tmp_path / ".stoker"
    write_run(home, "one")
    (home / "ledger.db").write_text("not a database, but long enough to look like a file of one" * 20)
    with pytest.raises(UsageError, match="is damaged"):
        Ledger(home).runs()
    with Server(home) as server:
        text = server.get("/").text
        assert "The ledger cannot be read now" in text
        assert 'data-run="one"' in text
