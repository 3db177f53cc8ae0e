"""Findings become candidates: a knob with a value, code to change, a layout to make, or Stoker's loader.

Pure. Never what is set already, and never more workers than memory holds.
"""

import dataclasses

from stoker.advise.causes import CANDIDATES
from stoker.advise.setting import RAM_SHARE, Setting
from stoker.attribute.summary import feeder
from stoker.records.diagnosis import Diagnosis, Finding, WorkerBudget
from stoker.records.observed import Observation

WORKER_BYTES = 300 << 20
"""A worker that was not seen: an interpreter with torch, and a few batches."""


def advise(said: Diagnosis, seen: Observation) -> Diagnosis:
    """The same diagnosis, with what could be done about each finding."""
    setting = _setting(said, seen)
    found = tuple(_advised(finding, setting) for finding in said.findings)
    first = next((finding.gain_max for finding in found if finding.gain_max), None)
    return dataclasses.replace(
        said,
        findings=found,
        worker_budget=_budget(setting),
        restart_below_share=1 - 1 / first if first and first > 1 else None,
    )


def _advised(finding: Finding, setting: Setting) -> Finding:
    make = CANDIDATES.get(finding.cause)
    candidates = tuple(make(finding, setting)) if make else ()
    fix = finding.fix
    if candidates:
        hint = candidates[0].hint.splitlines()
        fix = f"{candidates[0].text}" + (f": {hint[0]}" if len(hint) == 1 else "")
    return dataclasses.replace(finding, candidates=candidates, fix=fix)


# ---- what is set -------------------------------------------------------------------------------------------


def _setting(said: Diagnosis, seen: Observation) -> Setting:
    pids = {str(worker.pid) for worker in seen.workers if worker.worker is not None}
    private = [size for meter in seen.meters for pid, size in meter.private_bytes.items() if pid in pids]
    free = [meter.free_bytes for meter in seen.meters if meter.free_bytes is not None]
    makings = [making for worker in seen.workers for making in worker.makings]
    makings += [making for track in seen.tracks for making in track.probes.makings]
    read = [*(making.files for making in makings), *(worker.files for worker in seen.workers)]
    return Setting(
        said=said,
        facts=feeder(said.loaders),
        cores=int(min(seen.machine.cores, seen.machine.quota_cores or seen.machine.cores)) or 1,
        worker_bytes=max(private, default=WORKER_BYTES),
        free_bytes=min(free, default=seen.machine.ram_bytes),
        files=next((files for files in read if files), ()),
    )


def _budget(setting: Setting) -> tuple[WorkerBudget, ...]:
    """What some numbers of workers would take."""
    if setting.facts is None:
        return ()
    counts = sorted({setting.workers, 1, setting.cores, 2 * setting.cores, 4 * setting.cores} - {0})
    free = int(RAM_SHARE * setting.free_bytes)
    return tuple(WorkerBudget(n, n * setting.worker_bytes, free, setting.fits(n)) for n in counts)
