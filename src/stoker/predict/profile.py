"""Records of a run → what its device took in each step, to be replayed where that device is not."""

from stoker.attribute.steady import quantile
from stoker.records.attributed import Attribution
from stoker.records.observed import Track
from stoker.records.predicted import DeviceProfile

MOST_STEPS = 500


def recorded(track: Track, named: Attribution) -> DeviceProfile | None:
    """Each steady step without its wait for data, brought to the compute ceiling where an experiment measured it."""
    steady = named.steady
    facts = next((wait.facts for wait in named.loaders if wait.role == "train"), None)
    if steady is None or not steady.steps:
        return None
    steps = [named.steps[at] for at in steady.steps][:MOST_STEPS]
    whole = [max(step.seconds - step.parts.get("data_wait", 0.0), 1e-6) for step in steps]
    replays = [replay.seconds / replay.steps for replay in track.probes.replays if replay.steps]
    factor = quantile(replays, 0.5) / (sum(whole) / len(whole)) if replays else 1.0
    backward = [step.parts.get("backward", 0.0) * factor for step in steps]
    optimizer = [step.parts.get("optimizer", 0.0) * factor for step in steps]
    forward = [max(w * factor - b - o, 0.0) for w, b, o in zip(whole, backward, optimizer, strict=True)]
    size = (facts.batch_size if facts else None) or next(iter(track.batch_samples), 1)
    return DeviceProfile(track.device or "cpu", size, tuple(forward), tuple(backward), tuple(optimizer), None)
