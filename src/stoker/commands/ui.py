"""`stoker ui`: runs, decisions and data sets in a browser, on this machine."""

import sys
from importlib.util import find_spec
from pathlib import Path

import click

from stoker.commands.watch import Follower
from stoker.errors import UsageError
from stoker.ledger import HOME, Ledger
from stoker.records.attributed import Course
from stoker.records.compared import Comparison
from stoker.records.diagnosis import Diagnosis

PORT = 7654
NEEDS = {"starlette": "starlette", "uvicorn": "uvicorn", "altair": "altair", "vl_convert": "vl-convert-python"}


@click.command()
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0 is any free one.")
@click.option(
    "--home", default=HOME, show_default=True, type=click.Path(path_type=Path, file_okay=False), help="What to show."
)
@click.option("--open", "open_it", is_flag=True, help="Also open it in the browser.")
def ui(port: int, home: Path, open_it: bool) -> int:
    """Show runs, decisions and measured data sets in a browser; runs that go on are live. Ends with Ctrl-C.

    Only this machine can reach it (127.0.0.1), only with the token in the printed address, and it only reads. From
    another machine, go through ssh: ssh -L 7654:127.0.0.1:7654 HOST.
    """
    missing = [package for module, package in NEEDS.items() if find_spec(module) is None]
    if missing:
        raise UsageError(f"the dashboard needs {', '.join(missing)}: pip install 'stoker[ui]'")
    from stoker.dashboard.serve import kept_token, listen, serve
    from stoker.dashboard.shelf import Sources

    server = listen(port)
    sources = Sources(Ledger(home), _diagnose, Follower, _compare)

    def said(address: str) -> None:
        print(f"stoker: the dashboard is at {address}\nstoker: Ctrl-C ends it", file=sys.stderr, flush=True)
        if open_it:
            import webbrowser

            webbrowser.open(address)

    with server:
        serve(sources, server, kept_token(home), said)
    print("stoker: the dashboard has ended", file=sys.stderr)
    return 0


def _diagnose(directory: Path) -> tuple[Diagnosis, Course | None]:
    from stoker.commands.doctor import depict

    _, diagnosis, course = depict(directory)
    return diagnosis, course


def _compare(a: Path, b: Path) -> Comparison:
    from stoker.commands.compare import Side, contrast

    return contrast(Side.read(a), Side.read(b))
