"""Pages, pictures and traces as bytes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from report.tunings import tuning
from stoker.commands.doctor import depict
from stoker.ledger import Ledger
from stoker.records import encode
from stoker.report import charts, figures, page, trace


def stoker(cwd: Path, *words: str, without: str = "") -> "subprocess.CompletedProcess[str]":
    """The program, as if the modules `without` were not installed."""
    code = f"import sys; sys.modules.update(dict.fromkeys({without.split()}))\nfrom stoker.commands import main; main()"
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=cwd, env=os.environ, capture_output=True, text=True, check=False)


def test_the_doctor_says_where_the_page_is(home: Path, run: Path) -> None:
    assert (
        f"stoker: the report with pictures: {run.relative_to(home) / 'report.html'}" in (home / "said.txt").read_text()
    )


def test_a_page_holds_the_library_once_and_names_no_other_host(run: Path) -> None:
    text = (run / "report.html").read_text()
    assert text.count("window.vegaEmbed=") + text.count("window.vegaEmbed =") == 1
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r'(?:src|href)="(?!#)', outside)
    assert "http" not in outside.replace('http-equiv="Content-Security-Policy"', "")


def test_every_picture_of_a_run_is_an_svg_in_both_schemes(run: Path) -> None:
    seen, diagnosis, went = depict(run)
    for figure in figures.of_run(diagnosis, went):
        for scheme in ("light", "dark"):
            root = ET.fromstring(charts.svg(figure.chart, scheme))
            assert root.tag.endswith("svg")
            assert len(list(root.iter())) > 10
        assert all(len(row) == len(figure.heads) for row in figure.rows)
    assert seen.run == run.name


def test_a_join_leads_from_the_worker_to_the_wait(run: Path) -> None:
    went = depict(run)[2]
    assert went.excerpt is not None
    assert went.excerpt.lanes == ("worker 0", "worker 1", "main thread", "device")
    assert {join.lane for join in went.excerpt.joins} == {"worker 0", "worker 1"}
    waits = {span.step: span.end_s for span in went.excerpt.spans if span.name == "data_wait"}
    for join in went.excerpt.joins:
        assert join.made_s <= join.taken_s == pytest.approx(waits[join.step], abs=0.002)


def test_a_trace_is_what_perfetto_reads(home: Path, run: Path) -> None:
    done = stoker(home, "report", "last", "--trace", "trace.json")
    assert done.returncode == 0, done.stderr
    events = json.loads((home / "trace.json").read_text())["traceEvents"]
    lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert lanes == {"worker 0", "worker 1", "main thread", "device"}
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in spans)
    begun = {event["id"] for event in events if event["ph"] == "s"}
    assert begun
    assert begun == {event["id"] for event in events if event["ph"] == "f"}
    for flow in (event for event in events if event["ph"] in "sf"):
        held = [one for one in spans if one["tid"] == flow["tid"] and one["ts"] <= flow["ts"] <= one["ts"] + one["dur"]]
        assert held, "a flow that lies in no span is not drawn"
    excerpt = depict(run)[2].excerpt
    assert excerpt is not None
    assert json.loads(trace.dumps(excerpt, "x"))["traceEvents"][1:] == events[1:]


def test_without_the_extra_everything_else_still_comes(home: Path) -> None:
    gone = "altair vl_convert"
    done = stoker(home, "report", "last", "--md", "r.md", "--json", "r.json", "--trace", "t.json", without=gone)
    assert done.returncode == 0, done.stderr
    assert json.loads((home / "r.json").read_text())["steps"]
    page_asked = stoker(home, "report", "last", "--html", "r.html", without=gone)
    assert page_asked.returncode == 2
    assert page_asked.stderr.strip() == "stoker: altair is not installed; run: pip install 'stoker[report]'"
    assert not (home / "r.html").exists()


def test_the_doctor_without_the_extra_says_how_to_get_the_page(tmp_path: Path, home: Path) -> None:
    (tmp_path / "train.py").write_text((home / "train.py").read_text().replace("range(2)", "range(1)"))
    done = stoker(tmp_path, "doctor", "--whole", "train.py", without="altair vl_convert")
    assert done.returncode == 0, done.stderr
    assert "stoker: for a page with pictures of this: pip install 'stoker[report]'" in done.stderr
    assert not list(tmp_path.rglob("report.html"))


def test_report_writes_the_page_where_it_is_asked_to(home: Path) -> None:
    done = stoker(home, "report", "last", "--html", "deep/page.html")
    assert done.returncode == 0, done.stderr
    assert (home / "deep" / "page.html").read_text().startswith("<!doctype html>")
    assert done.stdout == ""


def test_a_tuning_is_reported_too(tmp_path: Path) -> None:
    row = Ledger(tmp_path / ".stoker").open_run(["python", "train.py", "--lr", "1"])
    (row.directory / "tuning.json").write_text(json.dumps(encode(tuning())))
    done = stoker(tmp_path, "report", "last", "--html", "tune.html", "--md", "tune.md", "--json", "tune.json")
    assert done.returncode == 0, done.stderr
    assert "set num_workers=2" in (tmp_path / "tune.html").read_text()
    assert "train.py --lr 1" in (tmp_path / "tune.md").read_text()
    assert json.loads((tmp_path / "tune.json").read_text()) == encode(tuning())
    assert "num_workers" in stoker(tmp_path, "report", str(row.directory)).stdout
    refused = stoker(tmp_path, "report", "last", "--trace", "t.json")
    assert refused.returncode == 2
    assert "has no timeline" in refused.stderr


def test_a_library_that_was_kept_is_used_and_a_damaged_one_is_made_anew(tmp_path: Path) -> None:
    page.library.cache_clear()
    whole = page.library(tmp_path)
    (kept,) = tmp_path.iterdir()
    assert page._read_kept(kept) == whole
    kept.write_text(kept.read_text()[:-1])
    assert page._read_kept(kept) is None
    page.library.cache_clear()
    assert page.library(tmp_path) == whole
    assert page._read_kept(kept) == whole
    kept.unlink()
    page.library.cache_clear()


def test_a_file_name_that_is_no_text_does_not_lose_the_page(tmp_path: Path) -> None:
    page.write("bad \udcff name", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "bad ? name"


def test_a_disk_that_is_full_is_left_without_half_a_page(tmp_path: Path) -> None:
    """Every file is full after 4 KiB; a page that was there stays a file, because it may be no file of ours."""
    (tmp_path / "old.html").write_text("old")
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom stoker.report import page\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "assert len(page.library(Path('cache'))) > 4096\n"
        "for name in ('new.html', 'old.html'):\n"
        "    try:\n        page.write('x' * 5000, Path(name))\n"
        "    except OSError as error:\n        print(error.strerror)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "File too large\n" * 2, done.stderr
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["cache", "old.html"]
