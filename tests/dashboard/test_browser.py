"""The dashboard as people see it: a real server, a real Chromium, nobody else to ask."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from cli.terminal import interrupt
from dashboard.made import BENCH, index, write_run, write_tuning
from dashboard.server import Server
from report.hostile import ATTACK
from report.test_browser import drawn, overflowing
from stoker.ledger import Ledger

pytestmark = pytest.mark.slow
SCRIPT = str(Path(__file__).parents[1] / "planted" / "accounting" / "watched.py")
LONG_MS = 90_000
SHOTS = os.environ.get("STOKER_SHOTS")
"""A directory for screenshots, for those who want to look."""


@contextmanager
def opened(browser: Browser, server: Server, scheme: Any = "light", width: int = 1200) -> Iterator[Page]:
    """A page; what it said and whom it asked is checked when it is closed."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    page = context.new_page()
    page.set_default_timeout(LONG_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: said.append(request.url) if not _is_ours(request.url, server) else None)
    yield page
    assert said == []
    context.close()


@contextmanager
def going_on(notes: Path, note: dict[str, Any]) -> Iterator[None]:
    """A process that writes a note now and then: one that is silent for long counts as lost."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(1):
            with notes.open("a") as file:
                file.write(json.dumps(note) + "\n")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def _is_ours(url: str, server: Server) -> bool:
    return url.startswith((server.url, "data:"))


def shoot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("kept") / ".stoker"
    commands = {"older": ("python", "train.py"), "newer": ("python", "train.py", "--workers", "4")}
    for name, command in commands.items():
        made = write_run(place, name, command=command, step_ms=20 if name == "older" else 10)
        index(place, name, made, command, "done", "decode-cpu")
    write_tuning(place, "tuned")
    Ledger(place).add_bench(["shards/*.npy"], json.dumps(BENCH))
    return place


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with Server(home) as started:
        yield started


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 375)])
def test_every_view_is_clicked_through(browser: Browser, server: Server, scheme: str, width: int) -> None:
    with opened(browser, server, scheme, width) as page:
        page.goto(server.url)
        shoot(page, f"runs-{scheme}-{width}")
        assert overflowing(page) == []
        page.get_by_role("link", name="older").click()
        page.wait_for_selector(f"html[data-drawn={scheme}]")
        assert {key for key, marks in drawn(page).items() if marks} >= {"chart-step", "chart-steps", "chart-memory"}
        shoot(page, f"run-{scheme}-{width}")
        assert overflowing(page) == []
        page.get_by_role("link", name="Runs").click()
        page.get_by_label("compare older").check()
        page.get_by_label("compare newer").check()
        page.get_by_role("button", name="Compare the two chosen").click()
        expect(page.get_by_label("verdict")).to_contain_text("B is faster")
        shoot(page, f"compare-{scheme}-{width}")
        assert overflowing(page) == []
        page.get_by_role("link", name="Data sets").click()
        expect(page.get_by_role("heading", name="shards/*.npy")).to_be_visible()
        shoot(page, f"data-{scheme}-{width}")
        assert overflowing(page) == []
        page.get_by_role("link", name="Runs").click()
        page.get_by_label("decisions").get_by_role("link", name="tuned").click()
        page.wait_for_selector(f"html[data-drawn={scheme}]")
        assert drawn(page)["chart-trials"]
        shoot(page, f"decision-{scheme}-{width}")
        assert overflowing(page) == []


def test_the_keyboard_is_enough(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.goto(server.url)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "filter"
        page.keyboard.type("workers 4")
        expect(page.locator("#shown")).to_have_text("1 of 3 runs")
        expect(page.get_by_label("compare older")).to_be_hidden()
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == "newer":
                break
        page.keyboard.press("Enter")
        page.wait_for_url("**/run/newer")
        page.wait_for_selector("html[data-drawn]")  # the page comes anew once its report is made
        unnamed = """() => [...document.querySelectorAll('a, button, input, [role=img], [role=region]')].filter(
            (one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length)).length"""
        assert page.evaluate(unnamed) == 0


def test_a_run_appears_goes_on_and_ends_without_a_reload(browser: Browser, server: Server, home: Path) -> None:
    with opened(browser, server) as page:
        page.goto(server.url)
        page.evaluate("window.same = true")
        page.get_by_label("compare older").check()
        command = [sys.executable, "-m", "stoker", "watch", "--", sys.executable, SCRIPT, "well", "400"]
        with subprocess.Popen(
            command, cwd=home.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as training:
            try:
                row = page.locator("tr", has_text="watched.py")
                expect(row.locator(".state")).to_have_text("live", timeout=LONG_MS)
                assert page.evaluate("window.same")
                assert page.get_by_label("compare older").is_checked()
                row.get_by_role("link").click()
                page.wait_for_selector("html[data-drawn=light]")
                page.evaluate("window.same = true")
                expect(page.locator("#live-merits")).to_contain_text("it/s", timeout=LONG_MS)
                before = page.locator("#live-merits").inner_text()
                page.wait_for_function(
                    "(text) => document.querySelector('#live-merits').innerText !== text", arg=before
                )
                page.wait_for_function("() => window.stoker.views['live-speed'].data('moments').length > 3")
                assert page.evaluate("window.same")
                page.emulate_media(color_scheme="dark")
                page.wait_for_selector("html[data-drawn=dark]")
                assert page.evaluate("() => window.stoker.views['live-speed'].data('moments').length") > 3
                shoot(page, "live-dark")
                assert overflowing(page) == []
            finally:
                interrupt(training)
        expect(page.get_by_role("heading", name="Configuration and hardware")).to_be_visible(timeout=LONG_MS)


def test_nothing_that_a_script_is_called_becomes_code(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / ".stoker"
    name = ATTACK.replace("/", "|")
    command = ("python", f"{ATTACK}.py", ATTACK)
    index(home, "bad", write_run(home, "bad", command=command, file=f"{ATTACK}.py"), command, ATTACK, ATTACK)
    write_run(home, "plain")
    index(home, ATTACK, home / "runs" / "absent", command, "done", ATTACK)
    live = write_run(home, name, command=command, file=f"{ATTACK}.py", over=False, age_s=0)
    notes = next(live.glob("*.notes"))
    odd = {"note": "odd", "t": 1 << 62, "value": ATTACK, "file": ATTACK, "line": 1}
    failed = {"note": "no_batch", "t": 1 << 62, "text": f"DataLoader worker {ATTACK}"}
    pulse = {"note": "pulse", "t": 1 << 62, "device": ATTACK, "busy_s": 1.0}
    with notes.open("a") as file:
        file.write("".join(json.dumps(note) + "\n" for note in (odd, failed, pulse)))
    write_tuning(home, "tuned", knob=ATTACK, command=command)
    Ledger(home).add_bench([ATTACK], json.dumps({**BENCH, "kind": ATTACK}))
    with going_on(notes, pulse), Server(home) as server, opened(browser, server) as page:
        for path in ("", "run/bad", "run/tuned", "data", "compare?run=bad&run=plain"):
            page.goto(f"{server.url}{path}")
            page.wait_for_selector("#content:not(:has(.working))")
            assert "<script>window.hacked=1</script>" in page.locator("#content").inner_text()
            assert page.evaluate("window.hacked") is None
            assert page.locator("img").count() == 0
        page.goto(server.url)
        page.get_by_role("link", name=name, exact=True).click()
        page.wait_for_function("() => document.documentElement.dataset.refreshed > 0")
        expect(page.locator("#live-alarms")).to_contain_text(ATTACK)
        assert page.evaluate("window.hacked") is None


def test_a_server_that_is_gone_is_said(browser: Browser, home: Path, tmp_path: Path) -> None:
    place = tmp_path / ".stoker"
    shutil.copytree(home, place, ignore=shutil.ignore_patterns("ui-token"))
    with Server(place) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url)
        expect(page.locator("#link")).to_have_text("live", timeout=LONG_MS)
        assert server.stop() == 0
        expect(page.locator("#link")).to_contain_text("not connected", timeout=LONG_MS)
        context.close()
