import subprocess
import sys

import pytest

from stoker.commands import VERBS


def stoker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "stoker", *arguments], capture_output=True, text=True, check=False)


def test_help_lists_the_verbs() -> None:
    done = stoker("--help")
    assert done.returncode == 0
    assert "demo" in done.stdout


def test_help_loads_nothing_heavy() -> None:
    code = """
import sys
from stoker.commands import main
try:
    main(["--help"])
except SystemExit:
    print([name for name in ("torch", "pyarrow", "altair", "numpy") if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_version_is_printed() -> None:
    assert stoker("--version").stdout.startswith("stoker, version 0.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dmo"], "stoker: no verb is called dmo; did you mean demo? See: stoker --help"),
        (["--nope"], "stoker: No such option '--nope'. See: stoker --help"),
        (["demo", "--nope"], "stoker: No such option '--nope'. See: stoker demo --help"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    done = stoker(*arguments)
    assert done.returncode == 2
    assert done.stderr.strip() == said
    assert done.stdout == ""


def test_no_verb_shows_the_help_and_exits_with_2() -> None:
    done = stoker()
    assert done.returncode == 2
    assert "Usage: stoker" in done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_the_examples_in_the_help_of_a_verb_keep_their_lines(verb: str) -> None:
    shown = stoker(verb, "--help").stdout
    assert "\\b" not in shown
    assert "Usage: stoker " + verb in shown
