"""Facts of made-up runs: a healthy one, and changes to it."""

import dataclasses
from typing import Any

from stoker.diagnose.facts import Facts
from stoker.diagnose.production import Production
from stoker.records import (
    Attribution,
    Bench,
    Ceilings,
    Device,
    Diagnosis,
    Inspection,
    Kind,
    LoaderFacts,
    Machine,
    MachineUse,
    Memory,
    Observation,
    Ordering,
    Phase,
    Prediction,
    Probes,
    Spread,
    Steady,
    Step,
    Track,
    WorkerTrack,
)

STEP_S = 0.1


def loader(**changes: Any) -> LoaderFacts:
    facts = LoaderFacts(1, "DataLoader", "Data", 100, 3200, 32, 2, 2, False, True, True, "fork", "train.py", 10)
    return dataclasses.replace(facts, **changes)


def made(**changes: Any) -> Production:
    """One sample in 0.1 ms of CPU: a batch of 32 in 3.2 ms."""
    base = Production(
        batches=50, samples=32, wall_s=1e-4, net_s=1e-4, collate_s=1e-6, cpu_s=1e-4, process_cpu_s=1e-4,
        blocked_s=0.0, system_s=1e-6, queued_s=0.0, mean_wall_s=1e-4, mean_net_s=1e-4, mean_cpu_s=1e-4,
        read_bytes=100.0, disk_bytes=0.0, net_bytes=0.0, opens=0.0, requests=0.0, result_bytes=100.0, sent_bytes=100.0,
        pickled_bytes=1.0, tensors=0.1, send_s=1e-6,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def slow(seconds: float, **changes: Any) -> Production:
    """One sample in so many seconds of CPU."""
    names = ("wall_s", "net_s", "cpu_s", "process_cpu_s", "mean_wall_s", "mean_net_s", "mean_cpu_s")
    return made(**{**dict.fromkeys(names, seconds), **changes})


class Made(Facts):
    """Facts whose benches are given as what they amount to."""

    __slots__ = ("given",)

    def bench(self, label: str) -> Production | None:
        given: dict[str, Production] = getattr(self, "given", {})
        return given.get(label)


def facts(given: dict[str, Production] | None = None, **changes: Any) -> Facts:
    """A run that computes for 100 ms a step and waits for nothing."""
    track = Track(
        1, None, 0, int(20e9), (), (), (), (), (), (loader(),), (), (), None, None, None, 3, 0, None, None, None, ()
    )
    steps = tuple(Step(0, 1, i // 50, i % 50 == 0, STEP_S, {"forward": STEP_S}) for i in range(150))
    phases = (Phase("forward", 15.0, 0.75), Phase("startup", 4.0, 0.2), Phase("shutdown", 1.0, 0.05))
    steady = Steady(0, tuple(range(150)), Spread(STEP_S, STEP_S, STEP_S), STEP_S, None, None)
    named = Attribution(20.0, 4.0, phases, 0.0, (), steps, (), steady, (), (), (), 150, 0, 1000)
    use = MachineUse(2, None, 2**34, None, None, None, None, None, None, None, None, None)
    said = Diagnosis(
        20.0, 150, 3, 100, 320.0, 4.0, (), steady.step_s, STEP_S, phases, 0.0, (), Ceilings(None, None),
        Prediction(10.0, 9.0, 11.0, 30.0), (), Memory(None, None, None), Device("sim", None), (), None, None,
        (Phase("forward", STEP_S, 1.0),), None, 0, None, None, (), (), use, (),
        epoch_parts={"steady": 10.0, **dict.fromkeys(("first_batch", "head", "validation", "checkpoint"), 0.0)},
    )  # fmt: skip
    seen = Observation(
        "run", ("python",), 0.0, 0, int(20e9), 0, False, False, True, False, (), (track,), (), (),
        Machine(2, None, 2**34, 2**30),
    )  # fmt: skip
    base: dict[str, Any] = {
        "seen": seen, "track": track, "named": named, "said": said, "probes": Probes(default_collate=True),
        "facts": loader(), "cores": 2.0, "wall_step_s": STEP_S, "step_s": STEP_S, "wait_s": 0.0, "compute_s": STEP_S,
        "compute_worst_s": STEP_S, "device_step_s": STEP_S, "main_cpu_s": 0.002, "loader_s": 0.002, "workers": 2,
        "real": made(), "makers": (), "benches": {}, "epochs": 3,
    }  # fmt: skip
    built = Made(**{**base, **changes})
    object.__setattr__(built, "given", given or {})
    return built


def waiting(given: dict[str, Production] | None = None, **changes: Any) -> Facts:
    """The same run with a device five times as fast: now it waits for data."""
    fast = {"wait_s": 0.08, "compute_s": 0.02, "compute_worst_s": 0.021, "device_step_s": 0.02, "loader_s": STEP_S}
    return facts(given, **{**fast, **changes})


def phases(run: Facts, **seconds: float) -> Facts:
    """The run with these seconds in a steady step."""
    parts = tuple(Phase(name, value, value / STEP_S) for name, value in seconds.items())  # type: ignore[arg-type]
    return dataclasses.replace(run, said=dataclasses.replace(run.said, step_phases=parts))


def worker(**changes: Any) -> WorkerTrack:
    return dataclasses.replace(WorkerTrack(7, 0, 1, 0, int(20e9), (), (), ()), **changes)


__all__ = ["Bench", "Inspection", "Kind", "Ordering", "facts", "loader", "made", "phases", "slow", "waiting", "worker"]
