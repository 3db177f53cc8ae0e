"""The outcome of a tuning in the terminal."""

import dataclasses
import io

import pytest
from rich.console import Console

from report.tunings import tuning
from stoker.report import decision


@pytest.mark.parametrize(("ratio", "told"), [(1.4, True), (1.01, False)])
def test_what_looked_faster_and_was_not_decided_is_said(ratio: float, told: bool) -> None:
    made = tuning()
    trials = [dataclasses.replace(one, ratio=ratio) if one.decision == "undecided" else one for one in made.trials]
    out = io.StringIO()
    decision.show(dataclasses.replace(made, trials=tuple(trials)), Console(file=out, width=200))
    assert ("undecided: num_workers=4 looked 1.40" in out.getvalue()) == told
    assert "undecided: num_workers=2" not in out.getvalue()
    assert "set num_workers=2: 1.62" in out.getvalue()


def test_a_caution_stands_in_the_terminal_and_in_the_record() -> None:
    made = tuning()
    assert made.context is not None
    short = dataclasses.replace(made, context=dataclasses.replace(made.context, caution="it ends after 6 steps"))
    out = io.StringIO()
    decision.show(short, Console(file=out, width=200))
    assert "caution: it ends after 6 steps" in out.getvalue()
    assert "Caution: it ends after 6 steps" in decision.markdown(short)
    assert "aution" not in decision.markdown(made)
