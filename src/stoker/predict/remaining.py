"""How long a run that goes on will still take: the rest of its epoch, and more like those it had. Pure."""

from collections.abc import Sequence

from stoker.records.live import LiveEpoch, Remaining

LAST = 3
"""Whole epochs that the next ones are taken to be like."""


def remaining(epochs: Sequence[LiveEpoch], step_s: float | None, planned: int | None) -> Remaining | None:
    """Seconds until the epoch's last step, and until the last epoch's end with all that follows an epoch."""
    if not epochs or step_s is None:
        return None
    now = epochs[-1]
    if now.length is None:
        return Remaining(None, None)
    left_s = 0.0 if now.is_over else max(now.length - now.batches, 0) * step_s
    if planned is None:
        return Remaining(left_s, None)
    done = [epoch for epoch in epochs if epoch.whole_s is not None][-LAST:]
    after_s = _mean([max((epoch.whole_s or 0.0) - epoch.first_batch_s - epoch.seconds, 0.0) for epoch in done])
    whole_s = _mean([epoch.whole_s or 0.0 for epoch in done]) if done else now.first_batch_s + now.length * step_s
    return Remaining(left_s, left_s + after_s + max(planned - now.number, 0) * whole_s)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
