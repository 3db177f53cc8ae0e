"""The process between the tuner and one trial: starts the command, watches its tree, sees to it that all of it ends.

It is a process of its own so that the tree has somebody to end it also when the tuner is killed with SIGKILL. It
imports neither torch nor numpy, and stands in a session of its own: Ctrl-C in the terminal reaches the tuner alone.

    python -m stoker.trial.supervise REPORT_FD     (the job is the first line on standard input)
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from stoker.records.codec import decode, encode
from stoker.records.tuning import Ending, Outcome
from stoker.trial import cgroup, device, prctl
from stoker.trial.protocol import KILL, NAME_VARIABLE, Job, Report, Usage
from stoker.trial.shm import Segments
from stoker.trial.tree import Tree, ask_to_end, kill, process
from stoker.trial.watch import Excess, Watch

PROGRESS_S = 0.5
# What the main process leaves running (a resource tracker, say) may end by itself within this time.
STRAGGLE_S = 0.5
# The kernel may still be giving pages back when the last process is gone.
GIVE_BACK_S = 5.0
_GIVEN_BACK_BYTES = 1 << 20
_PAUSE_S = 0.01
# Conventions of the shell for a command that is not there, or cannot be run.
_NOT_FOUND, _NOT_RUNNABLE = 127, 126
# The first that the kernel takes when memory is short, before anything else of the user's: see proc(5).
_OOM_FIRST = "1000"


class Supervisor:
    """Runs one job from start to end. `control` says when to stop; `reports` takes one JSON line at a time."""

    def __init__(self, job: Job, control: int, reports: int) -> None:
        self.job = job
        self.control: int | None = control
        self.reports = reports
        self.exit_code: int | None = None
        self.main = 0
        self.stop: str | None = None
        self.at_once = False
        self.cpu_s = 0.0
        self.segments = Segments()
        self.tree = Tree(os.getpid())
        self.group = cgroup.create(job.name, job.limits.host_bytes) if job.use_cgroup else None
        devices = device.Meter(device.nvidia())
        self.watch = Watch(self.tree, job.limits, group=self.group, segments=self.segments, devices=devices)
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda received, _: self._ask_to_stop(signal.Signals(received).name))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> Outcome:
        """The job, from start to end; nothing of it is left when this returns."""
        try:
            self._start()
        except OSError as error:
            self._clear()
            code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE
            return self._outcome(
                "failed", f"cannot start {error.filename or self.job.command[0]}: {error.strerror}", code
            )
        excess: Excess | None = None
        begun_s = time.process_time()
        try:
            excess = self._follow()
        finally:
            self.cpu_s = time.process_time() - begun_s
            stragglers, unkillable = self._end(excess)
            leaks = self._clear()
        return self._told(excess, stragglers, unkillable, leaks)

    def _start(self) -> None:
        environment = {**os.environ, **self.job.environment, NAME_VARIABLE: self.job.name}
        command = subprocess.Popen(
            self.job.command,
            cwd=self.job.cwd,
            env={name: value for name, value in environment.items() if value is not None},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=self._enter,  # noqa: PLW1509 - this process has one thread
        )
        self.main = command.pid
        command.returncode = 0  # reaped by _reap, with the orphans
        if self.group is not None and self._joined() is False:
            self.group.remove()
            self.group = self.watch.group = None

    def _enter(self) -> None:
        """In the child, before the command replaces it."""
        prctl.die_with_parent()
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_FIRST)
        if self.group is not None:
            with contextlib.suppress(OSError):
                self.group.join()

    def _joined(self) -> bool:
        assert self.group is not None
        try:
            groups = Path(f"/proc/{self.main}/cgroup").read_text()
        except OSError:
            return True  # it has already ended, wherever it was
        if any(line.endswith(f"/{self.group.path.name}") for line in groups.splitlines()):
            return True
        now = process(self.main)
        return now is None or now.is_zombie  # what has ended is shown in no group

    def _follow(self) -> Excess | None:
        """Watch until the main process ends, a limit is passed or somebody says stop."""
        next_report = 0.0
        while True:
            usage = self.watch.look()
            self._reap()
            if self.exit_code is not None:
                return self.watch.taken_by_kernel(self.exit_code)
            excess = self.watch.excess(usage)
            if excess or self.stop:
                return excess or ("interrupted", self.stop or "")
            if usage.seconds >= next_report:
                next_report = usage.seconds + PROGRESS_S
                self._tell(usage)
            self._listen(self.watch.pause_s())

    def _listen(self, seconds: float) -> None:
        """Wait for a child to end, for a word from the guard or for its death."""
        sources = [self._wake] if self.control is None else [self._wake, self.control]
        ready, _, _ = select.select(sources, [], [], seconds)
        if self._wake in ready:
            os.read(self._wake, 4096)
        if self.control is not None and self.control in ready:
            word = os.read(self.control, 64)
            self.at_once = self.at_once or KILL in word
            self._ask_to_stop("interrupted" if word else "the tuner ended")
            if not word:
                self.control = None  # an end of file would be ready for ever
        if os.getppid() != self.job.parent:
            self._ask_to_stop("the tuner ended")

    def _ask_to_stop(self, why: str) -> None:
        self.stop = self.stop or why

    def _reap(self) -> None:
        """Take the exit status of every ended child, adopted ones included."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.main:
                    self.exit_code = os.waitstatus_to_exitcode(status)

    def _end(self, excess: Excess | None) -> tuple[int, int]:
        """End what is left of the tree; how many had to be ended after the main process, and how many could not be."""
        if excess is None:
            self._wait_until_gone(STRAGGLE_S)
        stragglers = len([one for one in self.tree.look_again() if not one.is_zombie]) if excess is None else 0
        # At a limit of memory or processes every moment counts; otherwise it may save what it wants to save.
        if excess is None or excess[0] in {"time", "interrupted"}:
            self.tree.look_again()
            self.segments.scan(self.tree.members)  # who hears it may be gone before the next look
            ask_to_end(self.tree)
            self._wait_until_gone(self.job.grace_s)
        if self.group is not None and self.tree.look_again():
            self.segments.scan(self.tree.members)
            self.group.kill()
        return stragglers, kill(self.tree, self._reap, before=self._note_stopped)

    def _note_stopped(self) -> None:
        """While all are stopped: what they held at last, and which segments are theirs."""
        self.watch.look()
        self.segments.scan(self.tree.members)

    def _wait_until_gone(self, seconds: float) -> None:
        """Wait for the end, limits still held: who is told to end may take memory to do so, or because of it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.at_once:
            self._reap()
            if not self.tree.look_again():
                return
            excess = self.watch.excess(self.watch.look())
            if excess and excess[0] != "time":
                return
            self._listen(_PAUSE_S)

    def _clear(self) -> list[str]:
        """After the last process: remove what it left in /dev/shm, wait for the memory, remove the cgroup."""
        leaks = self.segments.remove_leaks(self.tree.seen)
        self.watch.close()
        if self.group is not None:
            deadline = time.monotonic() + GIVE_BACK_S
            while self.group.memory()[0] > _GIVEN_BACK_BYTES and time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
            self.group.remove()
        return leaks

    def _told(self, excess: Excess | None, stragglers: int, unkillable: int, leaks: list[str]) -> Outcome:
        ending, reason = excess or _by_itself(self.exit_code)
        notes = [
            (stragglers, "process(es) it left running were ended"),
            (len(leaks), "segment(s) it left in /dev/shm were removed"),
            (unkillable, "process(es) could not be ended"),
        ]
        return self._outcome(ending, "; ".join([reason, *(f"{count} {note}" for count, note in notes if count)]))

    def _outcome(self, ending: Ending, reason: str, exit_code: int | None = None) -> Outcome:
        peak = self.watch.peak
        by = f"cgroup {self.group.files.version}" if self.group is not None else "watch"
        return Outcome(
            ending=ending,
            exit_code=self.exit_code if exit_code is None else exit_code,
            reason=reason,
            seconds=peak.seconds,
            host_peak_bytes=peak.host_bytes,
            shm_peak_bytes=peak.shm_bytes,
            device_peak_bytes=peak.device_bytes,
            processes_peak=peak.processes,
            guarded_by=by,
            guard_cpu_s=self.cpu_s,
        )

    def _tell(self, usage: Usage) -> None:
        """Progress is dropped rather than waited for: a guard that does not read must not stop the watch."""
        with contextlib.suppress(OSError):
            os.set_blocking(self.reports, False)
            os.write(self.reports, _line(Report(usage=usage)))


def _by_itself(exit_code: int | None) -> Excess:
    if exit_code == 0:
        return "finished", "it ended by itself"
    if exit_code is not None and exit_code < 0:
        return "failed", f"it died of {_signal_name(-exit_code)}"
    return "failed", f"it ended with exit code {exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _line(report: Report) -> bytes:
    return json.dumps(encode(report)).encode() + b"\n"


def main() -> None:
    """Read the job, run it, report."""
    reports = int(sys.argv[1])
    os.set_inheritable(reports, False)
    with open(0, "rb", buffering=0, closefd=False) as control:  # unbuffered: what follows the job is for later
        job = decode(Job, json.loads(control.readline()))
    prctl.adopt_orphans()
    outcome = Supervisor(job, 0, reports).run()
    with contextlib.suppress(OSError):
        os.set_blocking(reports, True)
        os.write(reports, _line(Report(outcome=outcome)))


if __name__ == "__main__":
    main()
