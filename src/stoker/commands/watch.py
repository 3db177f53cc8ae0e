"""`stoker watch`: a training as it goes on, in the terminal."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.commands.numbers import Finite
from stoker.commands.outputs import OutFile
from stoker.errors import UsageError
from stoker.ledger import Ledger
from stoker.records.codec import decode
from stoker.records.live import Alarm, AlarmName, Live
from stoker.records.observed import Machine

if TYPE_CHECKING:
    from stoker.report.screen import Screen

TICK_S = 1.0
PIPED_S = 15.0
"""Between two lines where there is no terminal; an alarm is said at once."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--once", is_flag=True, help="Show RUN as it is now, and end.")
@click.option("--json", "json_path", type=OutFile(), help="Write the last picture as JSON; - is stdout.")
@click.option("--every", default=PIPED_S, type=Finite(0.2), help="Seconds between lines when piped.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Directory for the run's records.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def watch(once: bool, json_path: Path | None, every: float, out: Path | None, command: tuple[str, ...]) -> int:
    """Watch a training live. COMMAND starts one, after two dashes; RUN is one that was started or has ended:

    \b
        stoker watch -- python train.py --lr 0.1
        stoker watch last
        stoker watch train.py | tee log.txt

    Speed of each epoch, wait for data, device, memory and when it will be full, workers, time left, and alarms: memory
    nearly used up, a dead worker, a stall, recompiling, a starving loader, a loss that is no number.

    The script runs whole and as it is: epochs, checkpoints, output, signals and exit code are its own. If Stoker is
    killed the training goes on. On a terminal the picture stands below the script's output; piped, it is a line now
    and then on stderr. NO_COLOR is respected.

    Exit codes: the script's own (128 + n for a signal n), or 2 for wrong usage. For a RUN: 0.
    """  # noqa: D301  click's own mark is a backspace
    if _is_run(command):
        return attend(Ledger().find(command[0]), once=once, every_s=every, json_path=json_path)
    if once:
        raise UsageError("--once is for a RUN; a command is watched until it ends")
    return _start(command, out, every, json_path)


def _is_run(command: Sequence[str]) -> bool:
    """One word that is neither a script nor a program: a run."""
    if len(command) != 1 or command[0].endswith(".py"):
        return False
    if (Path(command[0]) / "run.json").is_file() or command[0] == "last":
        return True
    import shutil

    return shutil.which(command[0]) is None


# ---- a run that goes on ----------------------------------------------------------------------------------


class Follower:
    """Reads what a run has written since the last look, and says how it stands."""

    def __init__(self, directory: Path) -> None:
        from stoker.attribute.live import Fold
        from stoker.observe.readback import about
        from stoker.observe.tail import Tail

        known = about(directory)
        machine = decode(Machine, known["machine"]) if "machine" in known else None
        self._tail = Tail(directory)
        self._fold = Fold(
            directory.name, tuple(known["command"]), float(known["started_s"]), int(known["start_ns"]), machine
        )
        self._active: tuple[Alarm, ...] = ()
        self._past: tuple[Alarm, ...] = ()

    @property
    def behind(self) -> bool:
        """More is there than the last look has read."""
        return self._tail.behind

    def look(self) -> Live:
        """The run as it is now: observe → attribute → predict → diagnose."""
        from stoker.diagnose.alarms import alarms, carry
        from stoker.predict.remaining import remaining

        self._fold.take(self._tail.read())
        live = self._fold.picture(time.perf_counter_ns())
        live = replace(live, remaining=remaining(live.epochs, live.step_s, live.epochs_planned))
        if self.behind:
            return live
        self._active, self._past = carry(self._active, self._past, live, alarms(live))
        return replace(live, alarms=self._active, past=self._past)

    def catch_up(self, said: Callable[[Live], None] = lambda _: None) -> Live:
        """Look until nothing is left to read."""
        live = self.look()
        while self.behind:
            said(live)
            live = self.look()
        return live


def attend(directory: Path, *, once: bool, every_s: float, json_path: Path | None) -> int:
    """Show a run until it ends or the user leaves; it is only read."""
    follower = Follower(directory)
    view = _view(sys.stdout, every_s, here=True)
    try:
        live = follower.catch_up(lambda live: view.catching_up(live.steps))
        while not once and live.state not in ("ended", "lost"):
            view.show(live)
            time.sleep(TICK_S)
            live = follower.catch_up()
        view.finish(live)
    except KeyboardInterrupt:
        view.close()
        print("stoker: left; the run is as it was", file=sys.stderr)
        return 0
    finally:
        view.close()
    _write(live, json_path)
    return 0


# ---- a command -------------------------------------------------------------------------------------------


def _start(command: Sequence[str], out: Path | None, every_s: float, json_path: Path | None) -> int:
    """Run the command to its end, whole and untouched, and show it meanwhile."""
    from stoker.observe.launch import launch, resolve
    from stoker.observe.options import Options
    from stoker.trial.cgroup import room_bytes

    words = resolve(command)
    ledger = Ledger()
    try:
        row = ledger.open_run(words, out)
    except OSError as error:
        raise UsageError(f"the run's records cannot be kept: {error}; say where with --out DIR") from None
    print(f"stoker: watching; records go to {row.directory}", file=sys.stderr)
    options = Options(whole=True, probe=False, live=True, path_before=os.environ.get("PYTHONPATH"))
    directory = row.directory.resolve()
    guard = _Guarded(directory, every_s)
    ended = None
    try:
        ended = launch(words, directory, options, guard.tick, tick_s=TICK_S, room=room_bytes, outlives=True)
    finally:
        guard.end()
        state = "interrupted" if ended is None or ended.interrupted else "failed" if ended.code else "done"
        with suppress(Exception):  # the training is over; a ledger that is locked must not change its exit code
            ledger.close_run(row.run, state, None, None)
    if guard.last is not None:
        _write(guard.last, json_path)
    return ended.code if ended.code >= 0 else 128 - ended.code


class _Guarded:
    """The view of a command. Whatever goes wrong in it, the training goes on."""

    def __init__(self, directory: Path, every_s: float) -> None:
        from stoker.report import live  # before the clock runs: a first look is not to take longer than the others

        del live
        self.last: Live | None = None
        self._directory = directory
        self._follower: Follower | None = None
        self._view = _view(sys.stderr, every_s, here=False)
        self._before = self._on_stop()

    def _on_stop(self) -> Any:
        """Ctrl-Z: give the terminal back before everything stands still."""
        if threading_is_off_main():
            return None
        return signal.signal(signal.SIGTSTP, self._stop)

    def _stop(self, *_: Any) -> None:
        self._view.close()
        os.kill(os.getpid(), signal.SIGSTOP)

    def tick(self) -> None:
        """Called about once a second."""
        with self._careful():
            self._look(show=True)

    def end(self) -> None:
        """The command has ended."""
        with self._careful():
            self._look(show=False)
            self._view.close()
            if self.last is not None:
                self._view.finish(self.last)
        if self._before is not None:
            signal.signal(signal.SIGTSTP, self._before)

    def _look(self, *, show: bool) -> None:
        if self._follower is None:
            self._follower = Follower(self._directory)
        self.last = self._follower.look()
        if show:
            self._view.show(self.last)

    def _careful(self) -> "_Careful":
        return _Careful(self._view)


class _Careful:
    """A fault of the view is said once, and the view is closed."""

    def __init__(self, view: "View") -> None:
        self._view = view

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self._view.give_up(f"{kind.__name__}: {error}")
        return True


def threading_is_off_main() -> bool:
    """Signals can be set in the main thread only."""
    import threading

    return threading.current_thread() is not threading.main_thread()


# ---- showing ---------------------------------------------------------------------------------------------


class View:
    """Pictures on a terminal, in place."""

    def __init__(self, screen: "Screen") -> None:
        self._screen = screen
        self._off = False

    def show(self, live: Live) -> None:
        """The next picture."""
        from stoker.report.live import rows

        if not self._off:
            width, _ = self._screen.size()
            self._screen.draw(rows(live, width))

    def catching_up(self, steps: int) -> None:
        """A long run is being read."""
        from rich.text import Text

        self._screen.draw([Text(f"reading … {steps:,} steps")])

    def finish(self, live: Live) -> None:
        """The last picture, which stays."""
        self.show(live)

    def close(self) -> None:
        """Give the terminal back."""
        with suppress(OSError):
            self._screen.close()

    def give_up(self, why: str) -> None:
        """The view is broken; the run is not."""
        if not self._off:
            self._off = True
            self.close()
            print(f"stoker: the live view stopped ({why}); the run goes on", file=sys.stderr)


class Below(View):
    """Pictures below a script's output; at the end a few lines stay."""

    def finish(self, live: Live) -> None:
        """How it ended."""
        from stoker.report.live import ending

        for text in ending(live):
            print(f"stoker: {text}", file=sys.stderr)


class Lines(View):
    """A line now and then, and each alarm as it comes."""

    def __init__(self, stream: Any, every_s: float) -> None:
        self._stream = stream
        self._every_s = every_s
        self._said_s = 0.0
        self._alarms: dict[AlarmName, Alarm] = {}
        self._epoch = 0
        self._off = False

    def show(self, live: Live) -> None:
        """A line if it is time, or if an epoch has begun."""
        from stoker.report.live import line

        if self._off:
            return
        self._say_alarms(live)
        epoch = live.epochs[-1].number if live.epochs else 0
        if time.monotonic() - self._said_s >= self._every_s or epoch != self._epoch:
            self._said_s, self._epoch = time.monotonic(), epoch
            self._say(line(live))

    def _say_alarms(self, live: Live) -> None:
        from stoker.report.live import alarm_text

        now = {alarm.name: alarm for alarm in live.alarms}
        for name, alarm in now.items():
            if name not in self._alarms:
                self._say(f"alarm: {alarm_text(alarm)}")
        for over in self._alarms.keys() - now.keys():
            self._say(f"alarm over: {over}")
        self._alarms = now

    def finish(self, live: Live) -> None:
        """How it ended, or how it stands."""
        from stoker.report.live import ending, line

        for text in ending(live) if live.state in ("ended", "lost") else [line(live)]:
            self._say(text)

    def catching_up(self, steps: int) -> None:
        """Nothing to say in a pipe."""

    def close(self) -> None:
        """Nothing to give back."""

    def _say(self, text: str) -> None:
        with suppress(BrokenPipeError):
            print(f"stoker: {text}", file=self._stream, flush=True)


def _view(stream: Any, every_s: float, *, here: bool) -> View:
    """What fits where the output goes."""
    from stoker.report import screen

    if not stream.isatty() or os.environ.get("TERM") in (None, "", "dumb"):
        return Lines(stream, every_s)
    return View(screen.Here(stream)) if here else Below(screen.Below(stream))


def _write(live: Live, json_path: Path | None) -> None:
    from stoker.report import data

    if json_path is not None:
        data.write(data.dumps(live), json_path)
