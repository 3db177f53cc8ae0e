"""How much of a run is enough: each loader's epoch may end early, and the run itself after a few whole cycles."""

import os
import sys
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.observe.options import Options
from stoker.observe.recorder import Recorder, clock

if TYPE_CHECKING:
    from stoker.observe.probe import Probes
    from stoker.observe.probe_ahead import Held

TRAIN_STEPS, TRAIN_S, TRAIN_LONGEST_S = 40, 12.0, 30.0
"""An epoch of training ends after this many steps *and* seconds, or after the longest time."""
FEWEST_STEPS = 6
"""No epoch is cut before this many batches, however slow they are …"""
SLOWEST_S = 75.0
"""… unless it takes longer than this."""
CHECK_BATCHES, CHECK_S, CHECK_LONGEST_S = 12, 3.0, 8.0
"""The same for an epoch of validation."""
CYCLES, CYCLES_S = 2, 30.0
"""The run ends after this many epochs, if they took this long together."""
TRIAL_STEPS, TRIAL_LEAST, TRIAL_LONGEST = 12, 5, 3
"""A trial sees this many steps beyond those that were made ahead; fewer, but this least, after so many budgets."""
BY_HAND = 20
"""An optimizer that has stepped this often without a batch is not fed by a loader, though one may validate."""
NOT_TRAINING = 4
"""An epoch that has brought this many batches and no backward is validation."""
DEAF = 20
"""A script that has caught this many requests to end is ended without asking."""
LOOK_NS, NEVER = 5_000_000, 1 << 62
"""How seldom a fast loop is asked whether its epoch is over."""
CUT, END = "cut", "end"
ENOUGH = "enough"
"""A file in the run's folder: it was ended from here."""


class Enough(SystemExit):
    """The doctor has seen enough. Not an `Exception`, so that scripts that catch those still end."""

    def __init__(self) -> None:
        super().__init__(0)


@dataclass(slots=True)
class Epoch:
    """One pass over one loader, as its iterator goes along."""

    loader: int
    length: int | None
    bearable: bool
    grad: bool
    backwards_before: int
    began_ns: int = 0
    first_ns: int = 0
    batches: int = 0
    over: bool = False
    ended: bool = False
    ordinal: int = 0
    source: Any = None
    trained: bool = False
    probed_ns: int = 0
    held: "deque[Held]" = field(default_factory=deque)  # taken ahead by an experiment, for the loop
    aside: int = 0  # batches that the loop got inside experiments
    is_strict: Callable[[], bool] = lambda: False  # would an early end be an error? Asked only when it matters


class Pace:
    """Decides when an epoch may end. Says nothing at all with `--whole`."""

    def __init__(self, options: Options, recorder: Recorder, directory: Path) -> None:
        self.whole = options.whole
        self.look_ns = NEVER if self.whole else 0
        """From when on it is asked again whether an epoch is over: fast steps need not ask each time."""
        self._cycle = options.cycle
        self.backwards = 0
        self.optimizer_steps = 0
        self.batches = 0
        self.loop_ns = 0
        self.cycles = 0
        self.epochs_noted = False
        self.feeds_itself = False
        """True if a loader without workers was seen: nobody has seen yet what it takes to start one."""
        self.probes: Probes | None = None
        self.trying = False
        """True until all experiments are made."""
        self._steps = options.steps
        self._epoch_s = options.epoch_s
        self._budget_ns = int(options.budget_s * 1e9)
        self._recorder = recorder
        self._directory = directory
        self._first_step_ns = 0
        self._fed = self._unfed_steps = 0
        self._watched_ns = 0
        self._is_later = False  # than its first epoch of training
        self._optimizers = 0
        self._passes: Counter[int] = Counter()
        self._ranks = Ranks(directory)
        self.is_ended = False
        self._told = 0

    def begin(self, epoch: Epoch) -> None:
        """A loader's epoch begins; the run may end here instead."""
        epoch.began_ns = clock()
        epoch.ordinal = self._passes[epoch.loader]
        self._passes[epoch.loader] += 1
        if self.whole:
            return
        self._ranks.meet()
        if not self._ranks.several and epoch.grad and self._may_end_at(epoch):
            self.end_run()
        self.loop_ns = self.loop_ns or epoch.began_ns

    def first(self, epoch: Epoch, now_ns: int) -> None:
        """The loop asks for an epoch's first batch."""
        epoch.first_ns = now_ns
        self.loop_ns = self.loop_ns or now_ns  # where the epoch began on another thread, nobody has said so

    def is_over(self, epoch: Epoch, now_ns: int) -> bool:
        """True if this epoch may end before its next batch; the run itself may end here too. Ask from `look_ns` on."""
        if self._steps is None and not self._ranks.several:  # where a count is promised, or ranks stop together, ask on
            self.look_ns = now_ns + LOOK_NS
        wish = self._wish(epoch, now_ns)
        if self._ranks.several:
            wish = self._agreed(f"{epoch.loader}-{epoch.ordinal}", epoch.batches, wish)
        if wish == END:
            self.end_run()
        if wish == CUT:
            self._cut(epoch)
        return epoch.over

    def _agreed(self, what: str, at: int, wish: str) -> str:
        if wish and not self._ranks.are_all_here():  # the others would not know, and wait for ever
            self.whole, self.look_ns = True, NEVER
            text = "some ranks were not started from here, so every epoch runs to its end"
            self._recorder.note("trouble", text=text)
            return ""
        return self._ranks.agree(what, at, wish)

    def _wish(self, epoch: Epoch, now_ns: int) -> str:
        trains = self.trains(epoch)
        late = trains and self._is_late(epoch, now_ns)
        enough = self._had_enough(epoch, trains, (now_ns - epoch.first_ns - epoch.probed_ns) / 1e9)
        if epoch.bearable and (enough or late):
            epoch.bearable = not epoch.is_strict()
        if (late and not (epoch.bearable and self._cycle)) or (
            trains and self._ranks.several and self._is_long_enough(now_ns)
        ):
            return END
        if enough and not trains and not self._cycle and self.cycles and not epoch.bearable:
            return END  # what a trial came to see lies behind a validation that must not be cut
        return CUT if epoch.bearable and (enough or late) else ""

    def _is_late(self, epoch: Epoch, now_ns: int) -> bool:
        if not self._cycle:
            return self._is_watched(epoch, now_ns)
        return now_ns - self.loop_ns > self._budget_ns and epoch.batches >= (self._steps or FEWEST_STEPS)

    def _is_watched(self, epoch: Epoch, now_ns: int) -> bool:
        """True if a trial has seen enough since its first batch came: starting workers is none of its steady time.

        What fills a cache or compiles makes the first epoch unlike the others: where that comes to its end in time, the
        next is watched for as long.
        """
        if self.cycles and not self._is_later:
            self._is_later, self._watched_ns = True, 0
        if not self.cycles and _is_nearly_over(epoch):
            return False
        if not self._watched_ns and epoch.batches:
            self._watched_ns = now_ns
        spent_ns = now_ns - self._watched_ns if self._watched_ns else 0
        source = epoch.source
        workers = getattr(source, "num_workers", 0) or 0
        ahead = workers * (getattr(source, "prefetch_factor", 0) or 0)
        wanted = max(TRIAL_STEPS, workers + 2) + ahead  # at least one whole round of them
        wanted = min(wanted, epoch.length or wanted)  # a whole epoch shows all there is
        enough = epoch.batches >= wanted or self.backwards >= TRIAL_LONGEST * wanted
        longest = spent_ns > TRIAL_LONGEST * self._budget_ns and self.backwards >= TRIAL_LEAST
        return spent_ns > self._budget_ns and (enough or longest)

    def trains(self, epoch: Epoch) -> bool:
        """True if this epoch trains: gradients are on and a backward has come, or may still come."""
        return self.backwards > epoch.backwards_before or (epoch.grad and epoch.batches < NOT_TRAINING)

    def delivered(self, epoch: Epoch, batch: Any) -> None:
        """A real batch goes to the loop."""
        if self.probes is not None:
            try:
                self.probes.delivered(epoch, batch)
            except Exception as error:  # noqa: BLE001  an experiment may fail, the loop may not
                self.probes, self.trying = None, False
                self._recorder.note("trouble", text=f"experiments ended: {error!r}")

    def meet_optimizer(self) -> int:
        """A number for an optimizer that was not seen before."""
        self._optimizers += 1
        return self._optimizers

    def stepped(self, optimizer: int) -> None:
        """An optimizer has stepped; a script without a loader is tried here, and ends here."""
        self.optimizer_steps += 1
        if self.probes is not None:
            self.probes.stepped(optimizer)
        if self.whole or not self._is_by_hand():
            return
        now = clock()
        self._first_step_ns = self._first_step_ns or now
        wish = END if now - self._first_step_ns > self._budget_ns and self.optimizer_steps > FEWEST_STEPS else ""
        self._ranks.meet()
        if (self._agreed("hand", self.optimizer_steps, wish) if self._ranks.several else wish) == END:
            self.end_run()

    def _is_by_hand(self) -> bool:
        """True if no loader has begun, or none has brought a batch for long."""
        self._unfed_steps = self._unfed_steps + 1 if self.batches == self._fed else 0
        self._fed = self.batches
        return not self.loop_ns or self._unfed_steps >= BY_HAND

    def ended(self, epoch: Epoch) -> None:
        """An epoch has come to its end, by itself or not."""
        if not epoch.ended:
            epoch.ended = True
            self.cycles += self.trains(epoch)
            if epoch.length is None and not epoch.over:  # a stream has shown how long it is
                self._recorder.note("stream", loader=epoch.loader, batches=epoch.batches + epoch.aside)

    def end_run(self) -> None:
        """Enough was seen: leave the script by the exception that means a normal exit."""
        if not self.is_ended:
            self.is_ended = True
            self._recorder.note("enough", cycles=self.cycles)
            self._recorder.flush()
            with suppress(OSError):
                (self._directory / ENOUGH).touch()
        self._told += 1
        if self._told > DEAF:
            os._exit(0)
        raise Enough

    def _had_enough(self, epoch: Epoch, trains: bool, seconds: float) -> bool:
        if _is_nearly_over(epoch):
            return False  # a whole epoch is worth more than a forecast
        if not self._cycle and trains:  # it ends when the budget is spent
            return self._epoch_s is not None and seconds >= self._epoch_s and epoch.batches >= FEWEST_STEPS
        if not trains:
            enough = epoch.batches >= CHECK_BATCHES and seconds >= CHECK_S
            return enough or (seconds >= CHECK_LONGEST_S and epoch.batches > 1) or seconds > SLOWEST_S
        if self._steps is not None:
            return epoch.batches >= self._steps or seconds > SLOWEST_S
        enough = epoch.batches >= TRAIN_STEPS and seconds >= TRAIN_S
        return enough or (seconds >= TRAIN_LONGEST_S and epoch.batches >= FEWEST_STEPS) or seconds > SLOWEST_S

    def _cut(self, epoch: Epoch) -> None:
        epoch.over = True
        self._recorder.note("cut", loader=epoch.loader, batches=epoch.batches, length=epoch.length, aside=epoch.aside)

    def _may_end_at(self, epoch: Epoch) -> bool:
        return self._is_long_enough(epoch.began_ns) if self._cycle else self._is_watched(epoch, epoch.began_ns)

    def _is_long_enough(self, now_ns: int) -> bool:
        if not self.loop_ns or not self.backwards:
            return False
        seconds = (now_ns - self.loop_ns) / 1e9
        return seconds * 1e9 > self._budget_ns or (self.cycles >= CYCLES and seconds > CYCLES_S)


def _is_nearly_over(epoch: Epoch) -> bool:
    """True if the rest of it is short."""
    return epoch.length is not None and epoch.length - epoch.batches - epoch.aside <= max(2, epoch.length // 10)


class Ranks:
    """Ranks that train together must stop together: rank 0 decides, a few batches ahead, and all obey."""

    LEAD = 4
    """Ranks wait for each other in every step, so none is this many batches ahead."""

    def __init__(self, directory: Path) -> None:
        world = os.environ.get("WORLD_SIZE", "1")
        self.several = world not in ("", "0", "1")
        self._leads = os.environ.get("RANK", "0") == "0"
        self._directory = directory
        self._others_known = os.environ.get("LOCAL_WORLD_SIZE") == world
        """True if a launcher that we started has started all of them."""
        self._met = False
        self._world = 0

    def meet(self) -> None:
        """The script may have formed a group by itself, or a trainer for it: each rank shows itself to the others."""
        group = sys.modules.get("torch.distributed")
        if self._met or group is None or not (group.is_available() and group.is_initialized()):
            return
        self._met, self._world = True, group.get_world_size()
        self.several, self._leads = self._world > 1, group.get_rank() == 0
        if self.several:
            with suppress(OSError):
                (self._directory / f"rank-{group.get_rank()}").touch()

    def are_all_here(self) -> bool:
        """True if all ranks know that ours may stop."""
        return self._others_known or (self._met and len(list(self._directory.glob("rank-*"))) >= self._world)

    def agree(self, what: str, at: int, wish: str) -> str:
        """What all ranks do at this batch, or step."""
        place = self._directory / f"agreed-{what}"
        try:
            if not place.exists():
                if wish and self._leads:
                    scratch = place.with_suffix(".part")
                    scratch.write_text(f"{at + self.LEAD} {wish}")
                    scratch.replace(place)
                return ""
            agreed_at, agreed = place.read_text().split()
        except (OSError, ValueError):
            return ""
        return agreed if at >= int(agreed_at) else ""
