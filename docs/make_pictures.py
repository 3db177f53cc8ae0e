"""Draw the pictures of the README and the docs anew, from a real run of the doctor on the records case.

python docs/make_pictures.py        (or: make pictures)

Takes about two minutes. Writes docs/images: the page in light and dark, and what the terminal shows.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console

from stoker.commands.doctor import diagnose
from stoker.report import terminal

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
SHOWN = {"width": 1100, "height": 1470}
COLUMNS = 110


def main() -> None:
    """Run the case in a directory of its own, so that what is seen is what a user sees."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "records"
        shutil.copytree(ROOT / "examples" / "records", home)
        shutil.copy(ROOT / "examples" / "folder.py", home.parent)
        words = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        environment = {**os.environ, **words}
        subprocess.run(["python", "make_data.py", "--out", "data"], cwd=home, env=environment, check=True)
        command = ["python", "-m", "stoker", "doctor", "--", "python", "train.py", "--data", "data"]
        subprocess.run(command, cwd=home, env=environment, check=True)
        os.chdir(home)  # paths are shown as seen from where the command was typed
        IMAGES.mkdir(exist_ok=True)
        (directory,) = (home / ".stoker" / "runs").iterdir()
        _page(directory / "report.html")
        _terminal(directory)
    for path in sorted(IMAGES.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def _page(path: Path) -> None:
    found = shutil.which(os.environ.get("STOKER_CHROMIUM", "chromium"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        for scheme, name in (("light", "report.png"), ("dark", "report-dark.png")):
            tab = browser.new_page(color_scheme=scheme, viewport=SHOWN)
            tab.goto(path.as_uri())
            tab.wait_for_selector(f"html[data-drawn={scheme}]")
            tab.screenshot(path=IMAGES / name)
        browser.close()


def _terminal(directory: Path) -> None:
    seen, diagnosis = diagnose(directory)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    terminal.show(diagnosis, seen.run, console)
    picture = console.export_svg(title="stoker doctor -- python train.py --data data")
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)  # rich asks a host for its font
    (IMAGES / "doctor.svg").write_text("\n".join(line.rstrip() for line in picture.splitlines()) + "\n")


if __name__ == "__main__":
    main()
