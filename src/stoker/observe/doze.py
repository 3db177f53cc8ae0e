"""Hooks that doze: of a fast and regular loop most steps are timed as a whole, and only some of them inside.

    all hooks … (32 steps) │ dozing: only the loader's own hooks, and rare ones (224 to 992 steps) │ all hooks … │

A step of half a millisecond would notice a dozen hooks. What they would have seen in the steps between is filled in
when the records are read, from the steps before (`dozed`). Whatever is not a part of the regular step ends it at once.
"""

from array import array
from collections.abc import Callable
from statistics import fmean
from time import perf_counter_ns as clock

from stoker.records.observed import ARG, KIND, SMALLEST_TIME, Kind

AWAKE, DOZING, LONGEST = 32, 224, 992
"""Steps with all hooks, and steps between, at least and at most."""
DOZE_NS = 1_000_000_000
"""How long a doze of more than the fewest steps may take: the shorter steps are, the more they notice hooks."""
FIRST = 64
"""Steps of an epoch before the first time."""
FAST_NS = 10_000_000
"""A longer step hardly notices its hooks."""
LONGEST_NS = DOZING * FAST_NS
"""No doze takes longer: steps may have become slow, and whoever wants to end the epoch asks when hooks are awake."""
SURE = 12
"""Whole steps that have to be alike, …"""
LONGEST_PERIOD = 4
"""… each like the one this many before it, at most: gradients may be accumulated."""
LOOKED_AT = 4_000
"""Numbers that are looked at, the newest."""
NEVER = 1 << 62

RARE = {Kind.GC, Kind.LOG, Kind.SAVE, Kind.RETIRE}
"""What may come into any step. Its hooks never doze."""
STILL = {Kind.FORWARD, Kind.LOSS, Kind.BACKWARD, Kind.OPTIMIZER, Kind.ZERO}
"""Whose hooks doze."""


class Doze:
    """Whether this process's hooks doze just now. `look` is called by the thread that writes, the rest by the loop."""

    def __init__(self, put: Callable[[int], None], module_calls: list[int]) -> None:
        self._put = put
        self._calls = module_calls
        self._before = 0, 0
        self._calls_a_step = 0
        self.asleep = [0]
        """Not 0 while the hooks doze: they ask this first."""
        self.at = NEVER
        """From which batch of the epoch on `turn` wants to be called, …"""
        self.until_ns = NEVER
        """… and from when on, while hooks doze."""
        self.may: Callable[[], bool] = lambda: False
        self.changed: list[Callable[[int], None]] = []
        """Told when hooks begin to doze (1) and when they wake (0): what can be taken off costs nothing meanwhile."""
        self._loader = 0
        self._period = 0
        self._dozing = DOZING
        self._began = 0
        self._has_sections = self._woken = False
        self._newest = array("q")

    def begin(self, loader: int) -> None:
        """An epoch begins: it is seen from its first step on, and so is the one that it may stand in the middle of."""
        self.wake()
        self.at, self._loader, self._period = FIRST, loader, 0

    def turn(self, loader: int, batches: int) -> None:
        """Before a batch is asked for: doze, or wake."""
        if self.asleep[0]:
            self.wake()
            self._calls[0] += self._calls_a_step * (batches - self._began)  # they were not counted, and cost as always
            self._before = self._calls[0], batches
            self.at = batches + AWAKE
        elif loader == self._loader and self._period and not self._woken and self.may():
            self._put(clock())
            self._put(Kind.DOZE << 1 | self._period << ARG)
            self._set(1)
            self._calls_a_step = (self._calls[0] - self._before[0]) // max(batches - self._before[1], 1)
            self._began, self.at = batches, batches + self._dozing
        else:
            self._loader, self._woken = loader, False
            self._before = self._calls[0], batches
            self.at = batches + AWAKE

    def wake(self) -> None:
        """All hooks see again."""
        if self.asleep[0]:
            self._set(0)
            self._put(clock())
            self._put(Kind.DOZE << 1 | 1)

    def _set(self, asleep: int) -> None:
        self.asleep[0] = asleep
        self.until_ns = clock() + LONGEST_NS if asleep else NEVER
        for tell in self.changed:
            tell(asleep)

    def section(self) -> None:
        """A section without gradients begins; one that is no part of every step may be a validation."""
        if not self._has_sections:
            self.wake()
            self.at, self._woken = 0, True  # for as many steps as always

    def forget(self) -> None:
        """In a forked child nothing dozes."""
        self._set(0)
        self.at, self._period = NEVER, 0

    def look(self, numbers: "array[int]") -> None:
        """Are the newest steps fast, and each like one shortly before it?"""
        self._newest = (self._newest + numbers)[-LOOKED_AT:]
        if self.asleep[0]:  # looking takes the interpreter from the loop for a millisecond
            return
        steps = _last_steps(self._newest, Kind.NEXT << 1 | self._loader << ARG)
        if len(steps) < SURE:
            return
        codes = [codes for codes, _ in steps[-SURE:]]
        step_ns = fmean(lasted for _, lasted in steps)  # many workers deliver several at once, and then none for long
        trains = any(code >> 1 & KIND == Kind.BACKWARD for one in codes for code in one)
        self._has_sections = any(code >> 1 & KIND == Kind.NO_GRAD for one in codes for code in one)
        self._period = _period(codes) if step_ns < FAST_NS and trains else 0
        self._dozing = min(max(int(DOZE_NS / step_ns), DOZING), LONGEST)


def _last_steps(numbers: "array[int]", begin: int) -> "list[tuple[tuple[int, ...], int]]":
    """Codes and length of each whole step since the hooks last dozed; `begin` is the code that a step begins with."""
    steps: list[tuple[tuple[int, ...], int]] = []
    codes: list[int] | None = None
    before = began = 0
    dozed = False
    for number in numbers:
        if number < SMALLEST_TIME <= before:
            kind = number >> 1 & KIND
            if kind == Kind.DOZE:
                codes, dozed = None, not number & 1
                if not dozed:
                    steps.clear()
            elif dozed:
                pass
            elif number == begin:
                if codes is not None:
                    steps.append((tuple(codes), before - began))
                codes, began = [], before
            elif codes is not None and kind not in RARE:
                codes.append(number)
        before = number
    return steps


def _period(codes: list[tuple[int, ...]]) -> int:
    """After how many steps they repeat themselves; 0 if they do not."""
    for period in range(1, LONGEST_PERIOD + 1):
        if codes[period:] == codes[:-period]:
            return period
    return 0
