"""How a tuning goes, on stderr: one line rewritten on a terminal, one line a round when piped."""

import sys
import time
from collections.abc import Mapping

from stoker.records.observed import Value
from stoker.sizes import format_bytes
from stoker.trial.contest import Candidate, Contest, Listener
from stoker.trial.protocol import Usage


class Live(Listener):
    """Says what runs, what each round brought and what is left."""

    def __init__(self, budget_s: float) -> None:
        self.contest: Contest | None = None
        self._budget_s = budget_s
        self._what = ""
        self._began_s = 0.0
        self._tty = sys.stderr.isatty()

    def tell(self, text: str) -> None:
        """A sentence of its own."""
        self.clear()
        again = " (measured before)" if self.contest is not None and self.contest.is_replaying else ""
        print(f"stoker: {text}{again}", file=sys.stderr, flush=True)

    def starting(self, knobs: Mapping[str, Value], number: int) -> None:
        """What runs now."""
        shown = ", ".join(f"{name}={value}" for name, value in knobs.items())
        self._what = "the doctor's run" if not number else f"run {number}: {shown or 'as it is'}"
        self._began_s = time.monotonic()
        if not number and not self._tty:
            print("stoker: the doctor looks for causes", file=sys.stderr, flush=True)

    def running(self, usage: Usage) -> None:
        """On a terminal, how long, how much memory, how much of the budget."""
        if not self._tty or self.contest is None:
            return
        took_s = time.monotonic() - self._began_s
        left_s = max(self.contest.left_s - took_s, 0.0)
        text = (
            f"stoker: {self._what}, {took_s:.0f} s, {format_bytes(usage.host_bytes)}; {left_s:.0f} s of the budget left"
        )
        print(f"\r\x1b[K{text}\r", end="", file=sys.stderr, flush=True)

    def judged(self, one: Candidate) -> None:
        """What a round brought."""
        if one.failure is not None or not one.rounds:
            return
        what = ", ".join(f"{name}={value}" for name, value in one.knobs.items())
        last = one.rounds[-1]
        ratio = last.reference_s[0] / last.candidate_s[0]
        expected = f", predicted {one.predicted_ratio:.2f}" if one.predicted_ratio and len(one.rounds) == 1 else ""
        self.tell(f"{what}: round {len(one.rounds)}, {ratio:.2f} of the reference's rate{expected}")

    def clear(self) -> None:
        """Leave the terminal clean."""
        if self._tty:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
