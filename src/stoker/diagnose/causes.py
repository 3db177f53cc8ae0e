"""The closed list of causes: what each means in one line, what to do in one line, and which goes first among equals."""

from dataclasses import dataclass

from stoker.diagnose import noise
from stoker.records.diagnosis import Evidence, Finding

GAIN = 1.05
"""Below this a finding is not worth a change (CAUSES: healthy)."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause. The list's order decides between findings of about the same gain: the more specific first."""

    name: str
    meaning: str
    fix: str


CAUSES = {
    cause.name: cause
    for cause in (
        Cause(
            "shm-small",
            "batches do not fit into /dev/shm",
            "a larger /dev/shm, or fewer and smaller batches in flight",
        ),
        Cause(
            "cpu-quota",
            "the container is held back by its CPU quota",
            "size workers and threads to the quota, or raise it",
        ),
        Cause(
            "thread-oversubscription",
            "threads fight for the cores",
            "one thread in each worker",
        ),
        Cause(
            "too-many-workers",
            "more workers make it slower",
            "fewer workers",
        ),
        Cause(
            "straggler",
            "all ranks wait for one",
            "balance the slow rank's input",
        ),
        Cause(
            "sampler",
            "the sampler itself takes long",
            "an order held in an array",
        ),
        Cause(
            "tokenize",
            "text is tokenised on the way to the model",
            "tokenise once and keep the ids, or batch it",
        ),
        Cause(
            "shuffle-thrash",
            "random order loads a file or chunk again for nearly every sample",
            "shuffle blocks, or cache more",
        ),
        Cause(
            "cold-cache",
            "the first touch of the data is slow, later ones are fast",
            "fetch ahead of the first epoch, or stage the data",
        ),
        Cause(
            "io-bandwidth",
            "the data's device or line is saturated",
            "compress, cache, or a faster disk",
        ),
        Cause(
            "request-latency",
            "each sample waits for an answer, one after the other",
            "many requests in flight, shards, or staging",
        ),
        Cause(
            "read-amplification",
            "far more bytes are read than used",
            "chunks that match what is used, or several samples per read",
        ),
        Cause(
            "collate",
            "samples are ready, batches are not",
            "put batches together with array operations",
        ),
        Cause(
            "ipc",
            "batches are made in time but arrive late",
            "few large tensors instead of many objects",
        ),
        Cause(
            "per-item-fetch",
            "Python runs for every sample where one sliced read would do",
            "fetch whole batches (`__getitems__`), or use Stoker's loader",
        ),
        Cause(
            "repeated-work",
            "the same work gives the same result in every epoch",
            "do it once and keep the result",
        ),
        Cause(
            "worker-respawn",
            "workers start anew in every epoch",
            "keep the workers alive",
        ),
        Cause(
            "dataset-pickle",
            "the data set is pickled to each worker before the first batch",
            "open the data lazily in the worker, keep it in arrays",
        ),
        Cause(
            "too-few-workers",
            "cores idle while the loop waits for data",
            "more workers, within memory",
        ),
        Cause(
            "decode-cpu",
            "decoding and transforming fill the cores",
            "a faster decoder, fewer pixels, or do it once",
        ),
        Cause(
            "checkpoint-stall",
            "training stands still while checkpoints are saved",
            "save rarer or in the background",
        ),
        Cause(
            "validation-stall",
            "validation takes a large part of the time",
            "smaller, rarer or better batched validation",
        ),
        Cause(
            "logging-stall",
            "logging, or what else is done after a step and no step needs, takes a large part of the time",
            "log, or do that, rarer or in the background",
        ),
        Cause(
            "gc-pause",
            "the garbage collector stops the loop",
            "gc.freeze() after set-up, higher thresholds",
        ),
        Cause(
            "python-loop",
            "one line starts many tiny operations",
            "one operation on whole tensors",
        ),
        Cause(
            "recompile",
            "torch.compile compiles again and again",
            "bucket the shapes, or dynamic=True",
        ),
        Cause(
            "autotune-shapes",
            "each new shape is slow",
            "fixed shapes, or cudnn.benchmark off",
        ),
        Cause(
            "blocking-copy",
            "copies to the device wait for it",
            "pin_memory=True and non_blocking=True",
        ),
        Cause(
            "host-sync",
            "the host waits for the device in every step",
            "read values every N steps only",
        ),
        Cause(
            "launch-bound",
            "starting operations takes longer than the device needs for them",
            "a bigger batch, torch.compile or CUDA graphs",
        ),
        Cause(
            "padding",
            "much of each batch only fills up",
            "batches of similar lengths, or packed ones",
        ),
        Cause(
            "no-mixed-precision",
            "matmuls run in fp32",
            "bf16 autocast, or TF32",
        ),
        Cause(
            "ram-growth",
            "workers' memory grows until something is killed",
            "arrays instead of Python objects",
        ),
        Cause(
            "compute-bound",
            "the model's own work fills the step",
            "nothing to fix in the input; precision, batch size, compile or more devices are what is left",
        ),
        Cause(
            "healthy",
            "nothing found is worth a change",
            "leave it as it is",
        ),
    )
}
RANK = {name: i for i, name in enumerate(CAUSES)}


def finding(
    cause: str,
    *evidence: tuple[str, float | str | None, str],
    gain: float | None,
    off: float,
    sure: float = noise.CERTAIN,
    share: float | None = None,
    place: str | None = None,
) -> Finding:
    """A finding in the words of its cause; evidence that was not measured is left out.

    `off` is the error of the gain, and `sure` the probability that what tells the cause from its neighbours holds.
    """
    assert cause in CAUSES, f"{cause} is not in the closed list"
    known = tuple(Evidence(name, value, unit) for name, value, unit in evidence if value is not None)
    if share is None and gain is not None:
        share = 1 - 1 / gain
    sure = max(sure, noise.UNTRIED)  # of two neighbours, the one that the measurement is for
    confidence = sure if gain is None else min(noise.likely(gain, GAIN, off), sure)
    return Finding(cause, share, gain, confidence, known, CAUSES[cause].fix, place)
