"""The planted suite: for each cause a script that suffers from exactly it, and a healthy twin, at two scales.

The doctor's tests and benchmark iterate over `cases()`. `evidence` says what a right doctor shows beside the name, in
the units it should show it in. A cause that cannot be planted on a machine says why in `needs`.
"""

import functools
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
SCALES = ("small", "large")
Which = Literal["slow", "healthy"]

# What a doctor may say of a healthy twin: there is nothing to change, or the work itself fills the time.
WELL = frozenset({"healthy", "compute-bound"})


def _always() -> str | None:
    return None


def _quota() -> str | None:
    """Why no CPU quota can be set here, or None."""
    for root in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        if root.exists():
            return None if os.access(root, os.W_OK) else f"{root} is not writable, so no CPU quota can be set"
    return "there are no control groups, so no CPU quota can be set"


@functools.cache
def no_namespace() -> str | None:
    """Why no /dev/shm of our own can be mounted here, or None."""
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"no mount namespace can be made here: {tried.stderr.strip()}" if tried.returncode else None


@dataclass(frozen=True)
class Planted:
    """One cause: what to expect of a doctor on its two scripts.

    `also` are causes that truly hold in the slow script too and may follow the first one. `unit` is what a step time
    is compared by: where the twin has another batch size, the time of a sample counts.
    """

    cause: str
    evidence: str
    also: tuple[str, ...] = ()
    unit: Literal["step", "sample", "memory"] = "step"
    batches: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1))
    needs: Callable[[], str | None] = _always

    def script(self, which: Which) -> Path:
        """The script's file."""
        return HERE / self.cause.replace("-", "_") / f"{which}.py"

    def samples_ratio(self, scale: str) -> float:
        """Samples in a step of the healthy script ÷ of the slow one."""
        slow, healthy = self.batches[SCALES.index(scale)]
        return healthy / slow


@dataclass(frozen=True)
class Case:
    """One run to judge: the first cause has to be one of `expected`, and none of `forbidden` may be found at all."""

    cause: str
    which: Which
    scale: str
    script: Path
    expected: frozenset[str]
    forbidden: frozenset[str]
    evidence: str


def cases() -> Iterator[Case]:
    """All that can be planted on this machine."""
    for planted in PLANTED:
        for scale in SCALES:
            if planted.needs() is None:
                expected = frozenset({planted.cause})
                script = planted.script("slow")
                yield Case(planted.cause, "slow", scale, script, expected, frozenset(), planted.evidence)
            forbidden = frozenset({planted.cause}) - WELL
            yield Case(
                planted.cause, "healthy", scale, planted.script("healthy"), WELL, forbidden, "no gain of 5 % or more"
            )


PLANTED = (
    Planted("compute-bound", "replay of cached batches as slow as the run; data wait under 2 % of wall"),
    Planted("decode-cpu", "transform CPU seconds per sample times samples/s near two cores; workers' CPU share near 1"),
    Planted(
        "tokenize",
        "seconds per sample from str to ids on the main thread; the same text again in each epoch",
        ("repeated-work",),
    ),
    Planted("collate", "collate seconds per batch against __getitem__ seconds per batch, 10 to 1 or more"),
    Planted("ipc", "seconds from worker-done to consumer-got; pickled objects (small) or bytes (large) per batch"),
    Planted("per-item-fetch", "seconds per sample in __getitem__ against one sliced read of the same rows"),
    Planted(
        "worker-respawn", "first batch of every epoch late by the workers' start; worker pids change with the epoch"
    ),
    Planted(
        "dataset-pickle", "first batch of the run late; pickled bytes and seconds of the data set; start method spawn"
    ),
    Planted("ram-growth", "private bytes per worker grow with samples read; level in the twin", (), "memory"),
    Planted("sampler", "seconds inside the batch sampler per batch on the main thread"),
    Planted(
        "shuffle-thrash",
        "file opens per batch near the batch size; sequential probe many times as fast",
        ("read-amplification",),
    ),
    Planted("read-amplification", "bytes read ÷ bytes used above 50, sequential as slow as shuffled"),
    Planted(
        "request-latency", "seconds per GET flat in size; worker CPU share under 0.2; samples/s grow with concurrency"
    ),
    Planted("io-bandwidth", "MB/s at the server's rate and flat in concurrency; worker CPU share under 0.2"),
    Planted(
        "cold-cache",
        "first-touch against second-touch seconds per sample; epoch 0 slow, later epochs at the device's rate",
    ),
    Planted("repeated-work", "same key, same result in each epoch; its share of worker CPU"),
    Planted("too-few-workers", "one of two cores idle while the consumer waits; one worker's CPU share near 1"),
    Planted(
        "too-many-workers", "run queue far above the cores; one worker alone yields more samples/s than all of them"
    ),
    Planted("cpu-quota", "quota in cores against cpu_count; throttled seconds", needs=_quota),
    Planted("thread-oversubscription", "threads times workers against cores; context switches; system CPU share"),
    Planted(
        "shm-small",
        "free /dev/shm bytes against bytes in flight; batches that went through the pipe",
        ("ipc",),
        needs=no_namespace,
    ),
    Planted("blocking-copy", "blocking host→device copies per step and seconds in them"),
    Planted("host-sync", "reads of device values per step and seconds the host waits in them, device idle meanwhile"),
    Planted("python-loop", "ops per step from one user line; device busy share"),
    Planted(
        "launch-bound",
        "device busy share low at this batch; step time flat as the batch grows; ops from many lines",
        unit="sample",
        batches=((8, 512), (16, 1536)),
    ),
    Planted("recompile", "dynamo's recompiles against distinct shapes; seconds in compiling"),
    Planted("autotune-shapes", "device seconds at the first sight of a shape against later ones; cudnn.benchmark on"),
    Planted(
        "no-mixed-precision",
        "dtype of the matmuls that ran (fp32), share of device time in them; TF32 off, autocast off",
    ),
    Planted("padding", "real ÷ padded elements per batch, about 0.2"),
    Planted("checkpoint-stall", "seconds in torch.save, and every how many steps"),
    Planted("validation-stall", "wall share of the no-grad loop over the second loader"),
    Planted("logging-stall", "seconds in logging per step, lines per step"),
    Planted("gc-pause", "seconds in gc callbacks, collections of generation 2, objects tracked"),
    Planted("straggler", "seconds each rank waits before the all-reduce; which rank never waits"),
)
