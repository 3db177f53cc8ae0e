"""Causes in the loop itself: what the main thread does between batches, and what comes once in an epoch."""

from stoker.diagnose import noise
from stoker.diagnose.causes import GAIN, finding
from stoker.diagnose.facts import MODEL, Facts
from stoker.diagnose.logs import beside_steps, logging_stall, logs
from stoker.records.diagnosis import Finding
from stoker.records.observed import ARG, Kind
from stoker.records.probes import Inspection, LineOps

EACH_STEP = 0.5
"""Syncs in a step from which they count as "in every step"."""
IN_ONE_CALL, PICKING = 48, 0.15
"""Operations that one line starts in one call, and the share of them that picks out parts of tensors; or how often it
uses one and the same weight in one call: a stack of layers does neither."""
ENTRIES = IN_ONE_CALL // 3
"""How often it goes into torch for them: a loop in Python does so in each round, a recurrent layer of torch's once."""
HOST_BYTES_PER_S, HOST_FLOPS_PER_S = 12e9, 20e9
"""One core at work on tensors, at half of what a slow one reaches (24 to 60 GB/s in its caches, 20 beyond; 28 to 60
GFLOP/s on thin layers): what operations take at these rates is the most that their work can take."""
TINY_OPS, LAUNCHED, LAUNCH_S = 200, 0.75, 50e-6
"""Operations in a step, the share of its time that goes into starting them rather than into their work, and the most
that starting one takes, forward, backward and Python included: what takes longer works, say a fused recurrent layer."""
HOST_BUSY, DEVICE_FILLS = 0.75, 0.9
"""Device busy share of a replayed step below which the host is the bound, and from which on a loop in the script costs
nothing that would be missed."""


def host_sync(facts: Facts) -> Finding | None:
    """Count and duration of waits for the device; the device's own work stays."""
    waited_s = facts.step_part("sync")
    steps = max(len(facts.named.steps), 1)
    count = facts.named.syncs / steps
    if count < EACH_STEP or not waited_s:
        return None
    gain = facts.loop_gain(waited_s)
    if gain < GAIN:
        return None
    return finding(
        "host-sync",
        ("waits for the device in a step", count, ""),
        ("waited in a step", waited_s, "s"),
        ("device busy in a step", facts.device_step_s, "s"),
        ("a step", facts.step_s, "s"),
        gain=gain,
        off=facts.off("step"),
        sure=noise.CERTAIN if facts.device_step_s is not None else noise.UNTRIED,
        place=_line(facts, "sync"),
    )


def blocking_copy(facts: Facts) -> Finding | None:
    """Time inside copies to the device."""
    copied_s = facts.step_part("transfer") * _waiting_share(facts)
    gain = max(facts.loop_gain(copied_s), facts.step_gain(facts.step_s - copied_s))  # a copy waits for no core
    if gain < GAIN or copied_s < 0.05 * facts.step_s:
        return None
    return finding(
        "blocking-copy",
        ("copying to the device in a step", copied_s, "s"),
        ("device busy in a step", facts.device_step_s, "s"),
        ("a step", facts.step_s, "s"),
        ("pin_memory", "on" if facts.facts and facts.facts.pin_memory else "off", ""),
        gain=gain,
        off=facts.off("step"),
        sure=noise.CERTAIN if facts.device_step_s is not None else noise.UNTRIED,
        place=_line(facts, "transfer"),
    )


def _waiting_share(facts: Facts) -> float:
    """The share of the time in copies that was in copies which wait, or in such as often are not short all the same."""
    spans: list[tuple[float, bool]] = []
    start = 0
    for time_ns, code in zip(facts.track.times_ns, facts.track.codes, strict=True):
        if code >> 1 & KIND != Kind.COPY:
            continue
        if code & 1:
            spans.append(((time_ns - start) / 1e9, bool(code >> ARG)))
        start = time_ns
    whole = sum(seconds for seconds, _ in spans)
    waited = sum(seconds for seconds, waits in spans if waits)
    others = [seconds for seconds, waits in spans if not waits]
    long = [seconds for seconds in others if seconds > SHORT_COPY_S]
    if len(long) > SELDOM * len(others):  # else they waited for a core, as anything does now and then
        waited += sum(long)
    return waited / whole if whole else 0.0


SHORT_COPY_S = 2e-3
"""A copy that does not wait returns in far less; a pageable one of many bytes does not."""
SELDOM = 0.1
KIND = (1 << ARG - 1) - 1


def python_loop(facts: Facts) -> Finding | None:
    """Many tiny operations from one line, in one call of its function."""
    inspected = facts.probes.inspection
    if inspected is None or not inspected.lines or not facts.compute_s:
        return None
    logged = beside_steps(facts)  # what a line makes for its log is logging's
    loops = [one for one in _loops(inspected) if (one.file, one.line) not in logged]
    if not loops:
        return None
    line = max(loops, key=lambda one: one.in_one_call)
    if facts.device_step_s and facts.device_step_s > DEVICE_FILLS * facts.compute_s:
        return None
    saved_s = sum(_line_s(facts, one.file, one.line) for one in _body(inspected, line))
    forward_s = sum(facts.step_part(name) for name in ("forward", "loss", "other"))
    saved_s += facts.step_part("backward") * min(saved_s / forward_s, 1.0) if forward_s else 0.0
    gain = facts.host_gain(saved_s)
    if gain < GAIN:
        return None
    return finding(
        "python-loop",
        ("operations in a step", float(inspected.ops), ""),
        ("from one line in one call", float(line.in_one_call), ""),
        ("that loop in a step", saved_s, "s"),
        ("a step on cached batches", facts.compute_s, "s"),
        ("device busy in it", facts.device_step_s, "s"),
        gain=gain,
        off=facts.off("step", "compute"),
        place=f"{line.file}:{line.line} {line.function}",
    )


def _loops(inspected: Inspection) -> list[LineOps]:
    return [one for one in inspected.lines if one.in_one_call >= IN_ONE_CALL and _is_loop(one)]


def _body(inspected: Inspection, line: LineOps) -> list[LineOps]:
    """The lines of the same loop: those of its function that start as many operations."""
    own = [one for one in inspected.lines if (one.file, one.function) == (line.file, line.function)]
    return [one for one in own if one.in_one_call >= IN_ONE_CALL]


def _is_the_scripts_loop(facts: Facts, inspected: Inspection) -> bool:
    """True if most operations of a step are those of one loop in the script, which is a cause of its own."""
    most = max((sum(one.ops for one in _body(inspected, line)) for line in _loops(inspected)), default=0)
    return most > 0.5 * inspected.ops and python_loop(facts) is not None


def _is_loop(line: LineOps) -> bool:
    if line.entries is not None and line.entries < ENTRIES:
        return False
    return line.picks >= PICKING * line.ops or line.repeats >= IN_ONE_CALL


def _line_s(facts: Facts, file: str, number: int) -> float:
    """Seconds of one line in a step, without the logging below it."""
    spent_s = facts.sampled_s(lambda line: line.file == file and line.line == number and not logs(line))
    return spent_s / max(len(facts.named.steps), 1)


def launch_bound(facts: Facts) -> Finding | None:
    """The host is busy starting operations, the device waits for them."""
    inspected = facts.probes.inspection
    if inspected is None or not facts.compute_s or facts.main_cpu_s is None or _is_the_scripts_loop(facts, inspected):
        return None
    if facts.device_step_s is None:
        return _launched_here(facts, inspected)
    idle_s = facts.compute_s - facts.device_step_s - facts.step_part("sync") - facts.step_part("transfer")
    if facts.device_step_s > HOST_BUSY * facts.compute_s or facts.main_cpu_s < 0.5 * facts.compute_s:
        return None
    model_s = sum(facts.step_part(name) for name in MODEL)
    if inspected.ops < 60 or model_s < 0.5 * facts.compute_s:  # noqa: PLR2004  it is the script's own code then
        return None
    gain = facts.step_s / max(facts.step_s - min(max(idle_s, 0.0), model_s), facts.device_step_s)
    if gain < GAIN:
        return None
    return finding(
        "launch-bound",
        ("operations in a step", float(inspected.ops), ""),
        ("a step on cached batches", facts.compute_s, "s"),
        ("device busy in it", facts.device_step_s, "s"),
        ("host for one operation", facts.compute_s / inspected.ops, "s"),
        gain=gain,
        off=facts.off("step", "compute"),
        sure=noise.likely(HOST_BUSY * facts.compute_s, facts.device_step_s, facts.off("compute")),
    )


def _launched_here(facts: Facts, inspected: Inspection) -> Finding | None:
    """The same where the host is the device: tensors so small that their work is next to nothing."""
    cpu_s = facts.quick_cpu_s
    if inspected.moved_bytes is None or inspected.ops < TINY_OPS or not cpu_s:
        return None
    work_s = inspected.moved_bytes / HOST_BYTES_PER_S + inspected.flops / HOST_FLOPS_PER_S
    work_s /= inspected.batch_share or 1.0  # batches of different lengths: one was inspected, all are timed
    launched = 1 - work_s / cpu_s
    model_s = sum(facts.step_part(name) for name in MODEL)
    gain = facts.host_gain(model_s * launched)
    if launched < LAUNCHED or cpu_s > LAUNCH_S * inspected.ops or gain < GAIN:
        return None
    return finding(
        "launch-bound",
        ("operations in a step", float(inspected.ops), ""),
        ("host for one operation", cpu_s / inspected.ops, "s"),
        ("bytes that one works on", inspected.moved_bytes / inspected.ops, "B"),
        ("their work, at most, of a step", 1 - launched, "share"),
        gain=gain,
        off=facts.off("step"),
    )


# ---- once in a while ---------------------------------------------------------------------------------------


def _share_of_loop(facts: Facts, phase: str) -> float:
    loop = facts.named.wall_s - facts.named.startup_s - facts.seconds("shutdown")
    return facts.seconds(phase) / loop if loop > 0 else 0.0


def gc_pause(facts: Facts) -> Finding | None:
    """Time in the collector, where the loop had to wait for it."""
    share = min(_share_of_loop(facts, "gc"), facts.step_part("gc") / facts.wall_step_s)  # not while compiling
    gain = facts.host_gain(share * facts.wall_step_s)
    if gain < GAIN or share < 1 - 1 / GAIN:
        return None
    asked = max(facts.track.collects, key=lambda one: one.calls, default=None)
    often = asked is not None and asked.calls > 1
    return finding(
        "gc-pause",
        ("collecting", facts.seconds("gc"), "s"),
        ("of the loop", share, "share"),
        ("asked for by the script itself, at least so often", float(asked.calls) if asked and often else None, ""),
        gain=gain,
        off=facts.off("step"),
        place=asked.place if asked and often else None,
    )


def checkpoint_stall(facts: Facts) -> Finding | None:
    """What saving adds to a full epoch."""
    parts = facts.said.epoch_parts
    saved_s = parts.get("checkpoint", 0.0) if parts else facts.seconds("checkpoint")
    gain = facts.epoch_gain(saved_s, idle=True)  # a copy of what lies on the device waits until it is done
    if gain is None or gain < GAIN:
        return None
    saves = facts.named.checkpoint_s
    return finding(
        "checkpoint-stall",
        ("saves seen", float(len(saves)), ""),
        ("one save", sum(saves) / len(saves) if saves else None, "s"),
        ("saving in a full epoch", saved_s, "s"),
        ("a full epoch", facts.epoch_s, "s"),
        gain=gain,
        off=noise.error(saves),
        place=_line(facts, "checkpoint"),
    )


def validation_stall(facts: Facts) -> Finding | None:
    """What loops without gradients add to a full epoch; a tenth is what one pays for knowing."""
    parts = facts.said.epoch_parts
    spent_s = parts.get("validation", 0.0) if parts else facts.seconds("validation")
    if facts.is_data_bound:
        spent_s *= 1 - _waited_share(facts)  # that part goes with the cause of the slow data
    gain = facts.epoch_gain(spent_s)
    if gain is None or gain < VALIDATION_GAIN:
        return None
    return finding(
        "validation-stall",
        ("validation in a full epoch", spent_s, "s"),
        ("a full epoch", facts.epoch_s, "s"),
        ("of it", spent_s / facts.epoch_s if facts.epoch_s else None, "share"),
        gain=gain,
        off=facts.off("step"),
        place=_line(facts, "validation"),
    )


def _waited_share(facts: Facts) -> float:
    """The share of validation that waits for data."""
    whole_s = facts.seconds("validation")
    waited_s = sum(wait.wait_s for wait in facts.named.loaders if wait.role == "validation")
    return min(waited_s / whole_s, 1.0) if whole_s else 0.0


VALIDATION_GAIN = 1 / (1 - 0.2)
"""Validation is wanted: below a fifth of the time it is no stall."""


def _line(facts: Facts, phase: str) -> str | None:
    line = next((line for line in facts.named.hot_lines if line.phase == phase), None)
    return f"{line.file}:{line.line} {line.function}" if line else None


RULES = (
    host_sync,
    blocking_copy,
    python_loop,
    launch_bound,
    gc_pause,
    logging_stall,
    checkpoint_stall,
    validation_stall,
)
