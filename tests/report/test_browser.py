"""Pages as people see them: in a real Chromium, from a file, with nobody else to ask."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from attribute.test_course import observed, two_workers
from report.hostile import ATTACK, poisoned
from report.tunings import tuning
from stoker.attribute import attribute
from stoker.attribute.course import course
from stoker.attribute.summary import summarise
from stoker.commands.doctor import depict
from stoker.records import Step
from stoker.report import page as pages
from stoker.report import run_page, tune_page

pytestmark = pytest.mark.slow
FIGURES = {"step", "timeline", "steps", "ready", "busy", "memory", "workers", "lines"}
MOST_BYTES = 4_000_000


@contextmanager
def opened(browser: Browser, path: Path, scheme: Any = "light", width: int = 1200) -> Iterator[Page]:
    """The page, drawn; what it said and whom it asked is checked when it is closed."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: said.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    page.wait_for_selector(f"html[data-drawn={scheme}]", timeout=60_000)
    yield page
    assert said == []
    context.close()


def drawn(page: Page) -> dict[str, int]:
    """For each chart how many marks it has."""
    script = """() => {
        const marks = ['path', 'line', 'text'].map((kind) => `svg .role-mark ${kind}`).join();
        const charts = [...document.querySelectorAll('.chart')];
        return Object.fromEntries(charts.map((chart) => [chart.id, chart.querySelectorAll(marks).length]));
    }"""
    return dict(page.evaluate(script))


def overflowing(page: Page) -> list[str]:
    """What stands out of the page to the right, except inside what scrolls by itself."""
    script = """() => {
        const wide = document.documentElement.clientWidth;
        const all = [...document.querySelectorAll('body *')].filter((one) => !one.closest('.scroll, svg *'));
        const out = all.filter((one) => one.getBoundingClientRect().right > wide + 1);
        const page = document.documentElement.scrollWidth > wide ? ['the page'] : [];
        return [...page, ...out.map((one) => `${one.tagName} ${one.id}`)];
    }"""
    page.wait_for_load_state()  # after a click, the style sheet may still be on its way
    return list(page.evaluate(script))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.html"
    pages.write(text, path)
    assert path.stat().st_size < MOST_BYTES
    return path


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("dark", 400)])
def test_the_doctor_s_page_opens_by_itself_with_every_picture(
    browser: Browser, run: Path, scheme: str, width: int
) -> None:
    with opened(browser, run / "report.html", scheme, width) as page:
        marks = drawn(page)
        assert {name.removeprefix("chart-") for name in marks} == FIGURES
        assert min(marks.values()) >= 1, marks
        assert overflowing(page) == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        label = page.evaluate("document.querySelector('#chart-step .role-axis-label text').getAttribute('fill')")
        assert (ground, label) == {
            "light": ("rgb(255, 255, 255)", "#59636e"),
            "dark": ("rgb(21, 24, 29)", "#a3abb5"),
        }[scheme]
        assert page.locator("h1").count() == 1
        assert page.locator("[role=img]:not([aria-label])").count() == 0


def test_the_timeline_zooms_by_its_buttons(browser: Browser, run: Path) -> None:
    with opened(browser, run / "report.html") as page:
        seen = "window.stoker.views.timeline.scale('x').domain()"
        first, last = page.evaluate(seen)
        page.get_by_role("button", name="zoom in").press("Enter")
        page.wait_for_function(f"{seen}[1] < {last}")
        low, high = page.evaluate(seen)
        assert (high - low) == pytest.approx((last - first) / 2)
        page.get_by_role("button", name="show all").click()
        page.wait_for_function(f"{seen}[1] == {last}")


def test_printed_from_a_dark_screen_it_is_black_on_white(browser: Browser, run: Path) -> None:
    with opened(browser, run / "report.html", "dark") as page:
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.wait_for_selector("html[data-drawn=light]", timeout=60_000)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator("nav").is_visible()


def test_the_policy_stops_what_is_not_ours(browser: Browser, run: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    stopped: list[tuple[str, str | None]] = []
    page.on("requestfailed", lambda request: stopped.append((request.url, request.failure)))
    page.goto((run / "report.html").as_uri())
    page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = 'window.hacked = 1';
        document.body.append(script);
        const markup = '<p onclick="window.hacked=1" id="click">x</p><img src="http://127.0.0.1:9/x">';
        document.body.insertAdjacentHTML('beforeend', markup);
    }""")
    page.locator("#click").click()
    assert page.evaluate("typeof window.hacked") == "undefined"
    refused = page.evaluate("""() => new Promise((done) => {
        const refuse = (event) => event.effectiveDirective === 'connect-src' && done(event.effectiveDirective);
        document.addEventListener('securitypolicyviolation', refuse);  // those above may be told late
        fetch('http://127.0.0.1:9/').catch(() => {});
        setTimeout(() => done('nothing'), 20000);
    })""")
    assert refused == "connect-src"
    assert ("http://127.0.0.1:9/x", "csp") in stopped
    context.close()


def test_strings_of_a_record_stay_strings(browser: Browser, run: Path, tmp_path: Path) -> None:
    seen, diagnosis, went = depict(run)
    diagnosis = dataclasses.replace(
        poisoned(diagnosis), verdict=f"healthy{ATTACK}", notes=(*diagnosis.notes, f"note{ATTACK}")
    )
    text = run_page.html(diagnosis, poisoned(went), f"{seen.run}{ATTACK}", [*seen.command, ATTACK])
    assert text.count(ATTACK) == 0  # a comparison that pytest does not explain: the page is a megabyte
    with opened(browser, write(tmp_path, text)) as page:
        page.wait_for_timeout(200)
        assert page.evaluate("typeof window.hacked") == "undefined"
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 3
        assert ATTACK in page.locator(".cause").inner_text()
        page.locator("#chart-lines svg .role-mark path").first.hover()
        tip = page.locator("#vg-tooltip-element")
        assert ATTACK in tip.inner_text()
        assert tip.locator("img, script").count() == 0


def test_strings_of_a_tuning_stay_strings(browser: Browser, tmp_path: Path) -> None:
    text = tune_page.html(poisoned(tuning()), f"run{ATTACK}", [ATTACK], f"# record {ATTACK}")
    assert text.count(ATTACK) == 0  # a comparison that pytest does not explain: the page is a megabyte
    with opened(browser, write(tmp_path, text)) as page:
        assert page.evaluate("typeof window.hacked") == "undefined"
        assert page.locator("img").count() == 0
        assert ATTACK in page.locator("pre").last.inner_text()


def test_a_tuning_without_predictions_or_noise_is_drawn_in_silence(browser: Browser, tmp_path: Path) -> None:
    made = tuning()
    trials = tuple(dataclasses.replace(trial, predicted_ratio=None) for trial in made.trials)
    made = dataclasses.replace(made, trials=trials, noise=None, goal=None)
    with opened(browser, write(tmp_path, tune_page.html(made, "run", ["train.py"], "# Decision"))) as page:
        assert set(drawn(page)) == {"chart-trials"}


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 400)])
def test_a_tuning_s_page_shows_trials_and_predictions(
    browser: Browser, tmp_path: Path, scheme: str, width: int
) -> None:
    path = write(tmp_path, tune_page.html(tuning(), "run", ["python", "train.py"], "# Decision"))
    with opened(browser, path, scheme, width) as page:
        marks = drawn(page)
        assert set(marks) == {"chart-trials", "chart-predictions"}
        assert min(marks.values()) >= 3
        assert overflowing(page) == []
        assert "1.62\u00d7 the rate" in page.locator(".verdict").inner_text()


def repeated(steps: Sequence[Step], times: int) -> Iterator[Step]:
    """The same steps again and again, each time later and in an epoch of their own."""
    whole_ns = steps[-1].end_ns - steps[0].start_ns
    for i in range(times):
        for step in steps:
            start_ns, end_ns = step.start_ns + i * whole_ns, step.end_ns + i * whole_ns
            yield dataclasses.replace(step, start_ns=start_ns, end_ns=end_ns, epoch=step.epoch + i)


@pytest.mark.parametrize("steps", [5_000, 100_000])
def test_a_long_run_makes_a_small_page_that_opens(browser: Browser, tmp_path: Path, steps: int) -> None:
    track, workers = two_workers(5_000)
    seen, named = observed(track, workers), attribute(track)
    diagnosis = summarise(seen, track, named, None)
    named = dataclasses.replace(named, steps=tuple(repeated(named.steps, steps // 5_000)))
    text = run_page.html(diagnosis, course(seen, track, named), "long", seen.command)
    with opened(browser, write(tmp_path, text), "light", 400) as page:
        assert min(drawn(page).values()) >= 1
        assert overflowing(page) == []
