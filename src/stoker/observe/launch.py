"""Start the user's command with Stoker attached, watch it from outside, pass signals on as if Stoker were not there."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import UsageError
from stoker.observe.child import RUN
from stoker.observe.files import write
from stoker.observe.meters import Meters, machine
from stoker.observe.options import Options
from stoker.observe.pace import ENOUGH
from stoker.observe.restore import open_journal, restore
from stoker.records.codec import encode
from stoker.records.observed import KIND, TRAINING

ATTACH = Path(__file__).parent / "attach"
TICK_S = 0.5
TICK_SHARE = 0.01
"""What looking from outside may take of one core; it comes more rarely where it takes longer."""
DETAIL_S, SPARSEST_S = 3600.0, 5.0
"""After the first, meters are kept less often, down to one in the second: a week of them stays small."""
PATIENCE_S = 20.0
"""How long a script may take to end once the doctor has seen enough."""
LAST_CALL_S = 5.0
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
PASSED_ON = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT}
"""What a scheduler says to a script, and the script understands by itself."""
FROM_KERNEL = 0x80
"""`si_code` of a signal that the terminal sent to the whole group: the child has it already."""
PDEATHSIG, SUBREAPER = 1, 36
"""prctl's numbers."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    interrupted: bool
    ended_by_doctor: bool


def resolve(command: Sequence[str]) -> list[str]:
    """The command as it is started; a mistake that can be seen beforehand is said beforehand."""
    if not command:
        raise UsageError("no command was given; write it after two dashes, at the end: -- python train.py")
    first = command[0]
    if first.startswith("-"):
        raise UsageError(f"no option is called {first}; --help lists them. They stand before the command")
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise UsageError(f"{first} does not exist; expected the path of a training script")
        return [sys.executable, *command]
    if shutil.which(first) is None:
        raise UsageError(f"{first} is no command that can be run; expected something like: python train.py")
    _check_script(command)
    return list(command)


def _check_script(command: Sequence[str]) -> None:
    """`python [-u …] script.py`: the script must be there."""
    if not Path(command[0]).name.startswith("python"):
        return
    for word in command[1:]:
        if word in ("-m", "-c", "-"):
            return
        if not word.startswith("-"):
            if word.endswith(".py") and not Path(word).is_file():
                raise UsageError(f"{word} does not exist; expected the path of a training script")
            return


def launch(
    command: Sequence[str],
    directory: Path,
    options: Options,
    on_tick: Callable[[], None],
    *,
    tick_s: float = TICK_S,
    room: Callable[[], int | None] = lambda: None,
    outlives: bool = False,
) -> Ended:
    """Run the command to its end; everything it leaves behind is in `directory`.

    `room` says how many bytes the run may still take where something besides the machine limits it. A run that
    `outlives` us goes on if we are killed.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*SIGNALS, *PASSED_ON, signal.SIGCHLD})

    def in_child() -> None:
        if not outlives:
            libc.prctl(PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        environment = prepare(command, directory, options)
        child = _started(command, {**os.environ, **environment}, in_child)
        ended = _Watch(child, directory, on_tick, Meters(child.pid, room), tick_s).until_the_end()
        write(directory, "end.json", {"end_ns": time.perf_counter_ns(), **encode_end(ended)})
    finally:
        restore(directory)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return ended


def _started(
    command: Sequence[str], environment: dict[str, str], in_child: Callable[[], None]
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(command, env=environment, preexec_fn=in_child)  # noqa: PLW1509
    except OSError as error:
        raise UsageError(
            f"{command[0]} could not be started: {error.strerror}; expected a program or script"
        ) from error


def encode_end(ended: Ended) -> dict[str, int | bool]:
    """The end as it lies in the run's directory."""
    return {"code": ended.code, "interrupted": ended.interrupted, "ended_by_doctor": ended.ended_by_doctor}


def prepare(command: Sequence[str], directory: Path, options: Options) -> dict[str, str]:
    """Write down what the child must know; returns what to add to its environment, so that it looks there."""
    options.write(directory)
    about = {
        "command": list(command),
        "started_s": time.time(),
        "start_ns": time.perf_counter_ns(),
        "whole": options.whole,
        "machine": encode(machine()),
    }
    write(directory, "run.json", about)
    if options.observe and not options.whole:
        open_journal(directory)
    path = os.environ.get("PYTHONPATH")
    return {RUN: str(directory), "PYTHONPATH": os.pathsep.join(filter(None, [str(ATTACH), path]))}


class _Watch:
    """Waits for a child: meters, the live line, signals, and the end."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        directory: Path,
        on_tick: Callable[[], None],
        meters: Meters,
        tick_s: float,
    ) -> None:
        self._child = child
        self._directory = directory
        self._on_tick = on_tick
        self._meters = meters
        self._tick_s = self._wait_s = tick_s
        self._began_s = self._kept_s = time.monotonic()
        self._interrupts = 0
        self._enough_since = 0.0
        self._file = (directory / "meters.jsonl").open("ab", buffering=0)
        self._words = _words(child.pid)

    def until_the_end(self) -> Ended:
        with self._file:
            while self._child.poll() is None:
                self._wait()
                spent_s = time.thread_time()
                self._read_meters()
                self._on_tick()
                self._hurry()
                spent_s = time.thread_time() - spent_s
                self._wait_s = max(self._tick_s, min(spent_s / TICK_SHARE, SPARSEST_S))
            self._wait_for_daemons()
        return Ended(self._child.returncode, self._interrupts > 0, self._enough_since > 0)

    def _wait(self) -> None:
        info = signal.sigtimedwait({*SIGNALS, *PASSED_ON, signal.SIGCHLD}, self._wait_s)
        if info is None or info.si_signo == signal.SIGCHLD:
            return
        if info.si_signo in PASSED_ON:
            if info.si_code != FROM_KERNEL and self._child.poll() is None:
                self._child.send_signal(info.si_signo)
            return
        self._interrupts += 1
        if self._child.poll() is not None:
            return
        if self._interrupts > 2:  # noqa: PLR2004  asked three times, the user means it
            self._child.kill()
        elif info.si_code != FROM_KERNEL:
            self._child.send_signal(info.si_signo)

    def _read_meters(self) -> None:
        now_s = time.monotonic()
        if now_s - self._kept_s < min(self._tick_s * (now_s - self._began_s) / DETAIL_S, SPARSEST_S):
            return
        self._kept_s = now_s
        meter = self._meters.read()
        if meter is not None:
            try:
                self._file.write(json.dumps(encode(meter)).encode() + b"\n")
            except OSError:  # nothing was kept back that closing could fail on
                self._file = Path(os.devnull).open("ab", buffering=0)  # noqa: SIM115  it lives as long as the watch

    def _hurry(self) -> None:
        """A script that does not end although it was told to is asked, then made."""
        if not self._enough_since:
            if (self._directory / ENOUGH).exists():
                self._enough_since = time.monotonic()
            return
        waited = time.monotonic() - self._enough_since
        if waited > PATIENCE_S + LAST_CALL_S:
            self._child.kill()
        elif waited > PATIENCE_S:
            self._child.terminate()

    def _wait_for_daemons(self) -> None:
        """A script that goes into the background is adopted by us: by its own command line, or because it trains."""
        import psutil

        def in_background(process: psutil.Process, pids: set[int]) -> bool:
            return process.pid in pids or (self._words != [] and _words(process.pid) == self._words)

        def left() -> bool:
            pids = {int(path.name.split("-")[1]) for path in self._directory.glob("*.events") if _trains(path)}
            return any(in_background(process, pids) for process in psutil.Process().children(recursive=True))

        time.sleep(0.05)
        while left() and not self._interrupts:
            self._wait()
            self._on_tick()
            while os.waitpid(-1, os.WNOHANG)[0] if psutil.Process().children() else 0:
                pass


def _trains(events: Path) -> bool:
    """True if a process has trained: others that it left behind, such as a dashboard, are none of the run."""
    found = array("q")
    data = events.read_bytes()
    found.frombytes(data[: len(data) // found.itemsize * found.itemsize])
    return any(code >> 1 & KIND in TRAINING for code in found[1::2])


def _words(pid: int) -> list[str]:
    """A process's command line; empty when it has ended."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return line.decode(errors="replace").split("\0") if line else []
