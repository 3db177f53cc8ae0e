"""Causes in the model's own work: precision, padding, shapes, compiling, and no cause at all."""

import math

from stoker.diagnose import noise
from stoker.diagnose.causes import GAIN, finding
from stoker.diagnose.facts import MODEL, Facts
from stoker.records.diagnosis import Finding

HALF_SPEED_UP = 8.0
"""Peak of bf16 matmul units against fp32 (A100: 312 against 19.5 TFLOP/s with, 156 without TF32)."""
NOVEL = 0.3
"""Share of batches with a shape not seen before that makes shapes new all the time."""
NEW_SHAPE = 1.15
"""Real steps against replayed ones, whose shapes are known."""
FILLS = 0.9
MODEL_SHARE = 0.85
"""Where the model runs on the host itself, its phases are its work."""
RECOMPILES = 4


def no_mixed_precision(facts: Facts) -> Finding | None:
    """The type that hot operations really ran in."""
    inspected = facts.probes.inspection
    if inspected is None or not inspected.flops or facts.device_step_s is None or not facts.compute_s:
        return None
    fp32 = inspected.flops_by_dtype.get("float32", 0.0) / inspected.flops
    if fp32 < 0.5 or inspected.matmul_precision != "highest":  # noqa: PLR2004
        return None
    busy = min(facts.device_step_s / facts.step_s, 1.0)
    gains = inspected.half_ratio if facts.track.device == "sim" else HALF_SPEED_UP
    if gains is None or gains < GAIN:
        return None  # a device made of numbers gains what it says itself, and nothing else is known of it
    gain = 1 / (1 - busy * fp32 * (1 - 1 / gains))
    if gain < GAIN or busy < 0.5:  # noqa: PLR2004
        return None
    return finding(
        "no-mixed-precision",
        ("matmul and convolution work in fp32", fp32, "share"),
        ("autocast", "on" if inspected.autocast else "off", ""),
        ("TF32", "off", ""),
        ("device busy in a step", busy, "share"),
        ("the device in half precision", inspected.half_ratio, "ratio"),
        gain=gain,
        off=facts.off("step", "compute"),
        sure=noise.likely(fp32, 0.5, noise.LEAST),
    )


def padding(facts: Facts) -> Finding | None:
    """Real ÷ padded elements."""
    share = facts.probes.padding_share
    if share is None or not facts.compute_s:
        return None
    gain = facts.loop_gain(0.0) if facts.is_data_bound else 1 / (1 - share * min(facts.compute_s / facts.step_s, 1.0))
    if gain < GAIN or share < 0.1:  # noqa: PLR2004
        return None
    return finding(
        "padding", ("elements that only fill up", share, "share"), gain=gain, off=facts.off("step", "compute")
    )


def recompile(facts: Facts) -> Finding | None:
    """What dynamo compiled, against the shapes seen."""
    count, spent_s = facts.probes.recompiles, facts.probes.compile_s
    if count is None or spent_s is None or count < RECOMPILES:
        return None
    loop_s = facts.named.wall_s - facts.named.startup_s
    again_s = spent_s * (count - 1) / count
    gain = loop_s / max(loop_s - again_s, 0.05 * loop_s)
    if gain < GAIN:
        return None
    return finding(
        "recompile",
        ("graphs compiled", float(count), ""),
        ("compiling", spent_s, "s"),
        ("different shapes of batches", _number(facts.probes.shapes), ""),
        gain=gain,
        off=noise.LEAST,
    )


def autotune_shapes(facts: Facts) -> Finding | None:
    """Time against the novelty of shapes: one batch again and again has a known one."""
    shapes, looked = facts.probes.shapes, facts.probes.shaped_batches
    if not shapes or not looked or not facts.compute_s or (facts.probes.recompiles or 0) >= RECOMPILES:
        return None
    if not facts.probes.cudnn_benchmark:  # nothing searches for algorithms then
        return None
    if shapes / looked < NOVEL or shapes < 8 or facts.is_data_bound:  # noqa: PLR2004
        return None
    known = [replay.seconds / replay.steps for replay in facts.probes.replays if replay.known and replay.steps]
    if not known:
        return None
    known_s = math.fsum(known) / len(known)
    ratio = facts.step_s / known_s
    if ratio < NEW_SHAPE:
        return None
    return finding(
        "autotune-shapes",
        ("batches with a new shape", shapes / looked, "share"),
        ("a step with a new shape", facts.step_s, "s"),
        ("a step with a known one", known_s, "s"),
        ("cudnn.benchmark", "on" if facts.probes.cudnn_benchmark else "off", ""),
        gain=ratio,
        off=noise.together(facts.off("step"), noise.error(known)),
    )


def compute_bound(facts: Facts) -> Finding | None:
    """Replay of cached batches is as slow as the real run."""
    model_s = sum(facts.step_part(name) for name in MODEL)
    whole_s = sum(phase.seconds for phase in facts.said.step_phases)
    fills = bool(whole_s) and model_s >= MODEL_SHARE * whole_s
    if not facts.compute_s or (facts.compute_s < FILLS * facts.step_s and not fills):
        return None
    seen_s = facts.compute_s if facts.compute_s >= FILLS * facts.step_s else None  # else others were there in between
    return finding(
        "compute-bound",
        ("a step on cached batches", seen_s, "s"),
        ("a real step", facts.step_s, "s"),
        ("of it the model", model_s / whole_s if fills else None, "share"),
        ("device busy in it", facts.device_step_s, "s"),
        gain=None,
        off=facts.off("step", "compute"),
        sure=noise.likely(facts.compute_s, FILLS * facts.step_s, facts.off("step", "compute"))
        if not fills
        else noise.CERTAIN,
        share=min(facts.compute_s / facts.step_s, 1.0),
    )


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)


RULES = (no_mixed_precision, padding, recompile, autotune_shapes)
