"""A tuning, written by hand: one trial of each decision."""

from stoker.records import (
    Alternative,
    Candidate,
    Evidence,
    Files,
    Final,
    Finding,
    Goal,
    Machine,
    Noise,
    PhysicalLimits,
    Reference,
    Trial,
    Tuning,
    TuningContext,
)


def tuning() -> Tuning:
    same = {"host_peak_bytes": 300 << 20, "device_peak_bytes": None, "changes_results": False}
    return Tuning(
        reference=Reference({"num_workers": 1, "prefetch_factor": 2}, 0.215, 3488.0),
        noise=Noise(0.94, 1.07),
        trials=(
            Trial("num_workers", 1, 2, "batches are made in parallel", 1.8, 1.62, 1.5, 1.75, "keep", "faster", **same),  # type: ignore[arg-type]
            Trial("num_workers", 1, 4, "more of it", 1.9, 1.01, 0.95, 1.08, "undecided", "inside the noise", **same),  # type: ignore[arg-type]
            Trial("prefetch_factor", 2, 4, "hides slow ones", None, 0.81, 0.75, 0.9, "revert", "slower", **same),  # type: ignore[arg-type]
            Trial("batch_size", 64, 512, "fewer steps", 1.2, None, None, None, "unsafe", "out of memory", **same),  # type: ignore[arg-type]
        ),
        final=Final({"num_workers": 2}, 1.62, 1.5, 1.75),
        goal=Goal(60.0, True, "steps alone take 41 s"),
        files=Files("decision.md", "stoker.toml", "report.html"),
        context=TuningContext(
            ("python", "train.py", "--lr", "1"),
            0.0,
            Machine(2, None, 24 << 30, None),
            "sim",
            None,
            69,
            14.8,
            600,
            480.0,
            31,
            "all was tried",
        ),
        limits=PhysicalLimits(5300.0, 30_000.0, "the loader", 2.1),
        findings=(finding(),),
        alternatives=(Alternative("keep it in RAM", "no reads", "198 MB"),),
        median_prediction_error=0.12,
    )


def finding() -> Finding:
    advice = Candidate("code", "fetch whole batches", None, None, "def __getitems__", "low", False, "next run")
    return Finding(
        "per-item-fetch",
        0.7,
        3.0,
        0.9,
        (Evidence("Python for one sample", 92e-6, "s"),),
        "fetch",
        "train.py:46",
        None,
        (advice,),
    )
