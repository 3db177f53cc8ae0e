"""Runs one command so that it can never hurt the machine: the one function that the rest of Stoker calls for it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from stoker.errors import UnsafeError
from stoker.records.codec import decode, encode
from stoker.records.tuning import Limits, Outcome
from stoker.trial.protocol import END, KILL, Job, Report, Usage
from stoker.trial.shm import Segments
from stoker.trial.sweep import new_name, sweep, sweep_orphans

# How long a trial that is told to end may take to save what it wants to save, before it is killed.
GRACE_S = 5.0

Output = IO[Any] | int | None


def run(
    command: Sequence[str],
    limits: Limits,
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str | None] | None = None,
    stdout: Output = None,
    stderr: Output = None,
    progress: Callable[[Usage], None] | None = None,
    grace_s: float = GRACE_S,
    use_cgroup: bool = True,
) -> Outcome:
    """Run a command and all that it starts within limits; when this returns, or raises, none of it is left.

        outcome = run(["python", "train.py"], choose(seconds=60), progress=show)
        if outcome.ending == "ram": ...

    A command that fails, passes a limit or dies is a result, not an exception. `environment` is changes: None takes
    a variable away. `stdout` and `stderr` are open files (or descriptors); by default the command writes to ours.
    `progress` hears about twice a second what the tree holds. Ctrl-C ends the tree kindly, a second one at once; then
    KeyboardInterrupt goes on. Without `use_cgroup`, or where none can be written, the limits are only watched.
    """
    if not sys.platform.startswith("linux"):
        raise UnsafeError(f"trials are guarded on Linux only, this is {sys.platform}; tune on a Linux machine")
    sweep_orphans()
    job = Job(
        name=new_name(),
        command=tuple(command),
        cwd=None if cwd is None else os.fspath(cwd),
        environment=dict(environment or {}),
        limits=limits,
        grace_s=grace_s,
        use_cgroup=use_cgroup,
        parent=os.getpid(),
    )
    outcome: Outcome | None = None
    with _Link(job, stdout, stderr) as link:
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                report = link.next()
                outcome = report.outcome if report is not None else None
                if report is None or outcome is not None:
                    break
                if progress is not None and report.usage is not None and interrupt is None:
                    progress(report.usage)
            except KeyboardInterrupt as error:
                link.say(KILL if interrupt else END)
                interrupt = error
        if interrupt is not None:
            raise interrupt
    return outcome if outcome is not None else _lost(link.exit_code, link.swept)


class _Link:
    """The supervising process, seen from here. Leaving it by whatever way leaves nothing of the trial."""

    def __init__(self, job: Job, stdout: Output, stderr: Output) -> None:
        self.name = job.name
        self.exit_code: int | None = None
        self.swept = 0
        self._is_told = False
        self._segments = Segments()
        read, write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stoker.trial.supervise", str(write)],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(write,),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        self._reports = open(read, "rb")  # noqa: SIM115, PTH123
        try:
            self.say(json.dumps(encode(job)).encode() + b"\n")
        except BaseException:
            self.__exit__()
            raise

    def say(self, words: bytes) -> None:
        """Tell the supervisor; silently, if it has gone."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(words)
        except BrokenPipeError:
            return

    def next(self) -> Report | None:
        """The next report; None if there will be no more."""
        line = self._reports.readline()
        report = decode(Report, json.loads(line)) if line.endswith(b"\n") else None
        self._is_told = report is not None and report.outcome is not None
        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The end of its standard input tells the supervisor to end everything; wait for that, then make sure."""
        assert self._process.stdin is not None
        while self.exit_code is None:
            try:
                self._process.stdin.close()
                self.exit_code = self._process.wait()
            except KeyboardInterrupt:  # nothing may be left behind, however impatient
                continue
        self._reports.close()
        if not self._is_told:
            self.swept = sweep(self.name, self._segments)


def _lost(exit_code: int | None, swept: int) -> Outcome:
    """The supervisor died without a word: nothing was measured, and all that it had started was ended."""
    reason = f"the process that guarded it ended with {exit_code}; {swept} process(es) of it were ended"
    return Outcome("interrupted", None, reason, 0.0, None, None, None, None, "watch", None)
