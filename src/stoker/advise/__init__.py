"""Findings become candidates: a knob with a value, code to change, a layout to make, or Stoker's loader.

Pure. Never what is set already, and never more workers than memory holds.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stoker.knobs import KNOBS
from stoker.records.diagnosis import Candidate, Diagnosis, Finding, Horizon, WorkerBudget
from stoker.records.observed import LoaderFacts, Observation, Value

RAM_SHARE = 0.8
"""The share of free memory that workers may take; the rest is for the model, the page cache and surprises."""
WORKER_BYTES = 300 << 20
"""A worker that was not seen: an interpreter with torch, and a few batches."""
TEXT = ', column="text", tokenizer="tokenizer.json", length=512'
VOLUMES = ", patch=(64, 64, 64)"
KNOWN_DATA = {
    ".npy": "",
    ".parquet": "",
    ".jsonl": TEXT,
    ".txt": TEXT,
    ".tif": VOLUMES,
    ".tiff": VOLUMES,
    ".zarr": VOLUMES,
}
"""Files that `stoker.open` reads, and what it has to be told of them; the values are examples."""
IMAGES = (".jpg", ".jpeg", ".png", ".webp")
PICTURES = ", size=(224, 224)"


@dataclass(frozen=True, slots=True)
class Setting:
    """What is set, and what there is to spend."""

    said: Diagnosis
    facts: LoaderFacts | None
    cores: int
    worker_bytes: int
    free_bytes: int
    files: tuple[str, ...]

    def fits(self, workers: int) -> bool:
        """True if memory holds this many."""
        return workers * self.worker_bytes <= RAM_SHARE * self.free_bytes

    @property
    def workers(self) -> int:
        """How many there are."""
        return self.facts.num_workers if self.facts else 0

    @property
    def batch_size(self) -> int | str:
        """As the user set it."""
        return (self.facts.batch_size if self.facts else None) or "…"


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
    train = [wait for wait in said.loaders if wait.role == "train"]
    facts = max(train, key=lambda wait: wait.batches).facts if train else None
    pids = {str(worker.pid) for worker in seen.workers if worker.worker is not None}
    private = [size for meter in seen.meters for pid, size in meter.private_bytes.items() if pid in pids]
    free = [meter.free_bytes for meter in seen.meters if meter.free_bytes is not None]
    makings = [making for worker in seen.workers for making in worker.makings]
    makings += [making for track in seen.tracks for making in track.probes.makings]
    return Setting(
        said=said,
        facts=facts,
        cores=int(min(seen.machine.cores, seen.machine.quota_cores or seen.machine.cores)) or 1,
        worker_bytes=max(private, default=WORKER_BYTES),
        free_bytes=min(free, default=seen.machine.ram_bytes),
        files=next((making.files for making in makings if making.files), ()),
    )


def _budget(setting: Setting) -> tuple[WorkerBudget, ...]:
    """What some numbers of workers would take."""
    if setting.facts is None:
        return ()
    counts = sorted({setting.workers, 1, setting.cores, 2 * setting.cores, 4 * setting.cores} - {0})
    free = int(RAM_SHARE * setting.free_bytes)
    return tuple(WorkerBudget(n, n * setting.worker_bytes, free, setting.fits(n)) for n in counts)


# ---- kinds of candidates -----------------------------------------------------------------------------------


def _knob(name: str, value: Value, text: str, horizon: Horizon = "next run") -> Candidate:
    knob = KNOBS[name]
    hint = f"stoker run --set {name}={value} -- …" if not isinstance(value, bool) else f"{name}={value}"
    return Candidate("knob", text, name, knob.check(value), hint, knob.risk, knob.changes_results, horizon)


def _code(text: str, hint: str, *, changes_results: bool = False, horizon: Horizon = "next run") -> Candidate:
    return Candidate("code", text, None, None, hint, "low", changes_results, horizon)


def _layout(setting: Setting, text: str, to: str, more: str = "") -> Candidate:
    """`stoker pack` for the folder of the files that were read; one that is not known has a word for it.

    A `to` that begins with a dash is added to the folder's name. Images are packed smaller, so results change.
    """
    known = [file for file in setting.files if not file.startswith("http")]
    folder = _common(known) if known else "DATA"
    images = _has_images(setting)
    hint = f"stoker pack {folder} {folder + to if to.startswith('-') else to}{' --size 256' if images else more}"
    return Candidate("layout", text, None, None, hint, "low", images, "production")


def _has_images(setting: Setting) -> bool:
    return any(file.lower().endswith(IMAGES) and not file.startswith("http") for file in setting.files)


def _loader(setting: Setting) -> Candidate:
    """The two lines, with the user's own paths where they are known, and where they go."""
    source, told = _source(setting.files)
    facts = setting.facts
    shuffle = facts is not None and facts.shuffled
    opened = f'+ data = stoker.open("{source}"{told})' if source else "+ data = dataset  # your own, as it is"
    workers = "" if source else f", num_workers={setting.workers}"
    line = f"+ loader = stoker.Loader(data, batch_size={setting.batch_size}, shuffle={shuffle}{workers})"
    where = f" for the loop at {facts.file}:{facts.line}" if facts is not None and facts.file else ""
    return Candidate(
        "loader", f"use Stoker's loader{where}", None, None, f"{opened}\n{line}", "medium", True, "next run"
    )


def _source(files: tuple[str, ...]) -> tuple[str | None, str]:
    """A pattern for the files that were read, if they are of a kind that Stoker reads, and what else it asks."""
    for suffix, told in KNOWN_DATA.items():
        ours = [file for file in files if file.endswith(suffix)]
        if ours:
            folder = _common(ours)
            return (f"{folder}/*{suffix}" if len(ours) > 1 else ours[0]), told
    pictures = [file for file in files if file.lower().endswith(IMAGES)]
    return (_common(pictures), PICTURES) if pictures else (None, "")


def _common(files: list[str]) -> str:
    """The folder that holds them all; one above, if each has a folder of its own."""
    return os.path.commonpath([os.path.dirname(file) for file in files])  # noqa: PTH120


def _at(finding: Finding) -> str:
    return f" at {finding.place}" if finding.place else ""


# ---- one function for each cause that has more to say than one line --------------------------------------


def _workers_to(count: int, setting: Setting, why: str) -> Iterator[Candidate]:
    if count != setting.workers and (count < setting.workers or setting.fits(count)):
        yield _knob("num_workers", count, why)


def _too_few(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    wanted = max(setting.cores, 1)
    while wanted > setting.workers and not setting.fits(wanted):
        wanted -= 1
    if wanted > setting.workers:
        yield from _workers_to(wanted, setting, f"{wanted} workers instead of {setting.workers}")
        if setting.facts and not setting.facts.persistent_workers:
            yield _knob("persistent_workers", True, "keep them alive from epoch to epoch")


def _too_many(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    yield from _workers_to(setting.cores, setting, f"{setting.cores} workers, one for each core")


def _respawn(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    if setting.facts and not setting.facts.persistent_workers and setting.workers:
        yield _knob("persistent_workers", True, "keep the workers alive from epoch to epoch")
    yield _loader(setting)


def _per_item(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    yield _loader(setting)
    yield _code(
        f"fetch whole batches{_at(finding)}",
        "+ def __getitems__(self, indices):\n+     rows = self.data[np.asarray(indices)]   # one sliced read\n"
        "+     return torch.from_numpy(rows)\n  DataLoader(…, collate_fn=lambda batch: batch)",
    )


def _shuffle(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    yield _loader(setting)
    if not _has_images(setting):  # each is a file of its own, which has no order on disk
        yield _layout(setting, "shuffle once on disk, then read in order", "-shuffled", " --shuffle")


def _amplified(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    yield _layout(setting, "store it in pieces of the size that is used", "-packed")
    yield _code(f"take several samples from each read{_at(finding)}", "", changes_results=True)
    yield _loader(setting)


def _latency(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    yield _loader(setting)
    yield _code(
        f"ask for all samples of a batch at once{_at(finding)}",
        "+ def __getitems__(self, indices):\n+     with ThreadPoolExecutor(32) as pool:\n"
        "+         return list(pool.map(self.__getitem__, indices))",
    )
    more = 4 * max(setting.workers, 1)
    yield from _workers_to(more, setting, f"{more} workers: they wait, they do not work")
    yield _layout(setting, "stage the data on a local disk first", "/local/copy")


def _cold(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    yield _layout(setting, "fetch everything before the first epoch", "/local/copy")
    yield _loader(setting)


def _decode(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    yield _code(f"decode less, with a faster decoder, or once{_at(finding)}", "image.draft('RGB', (224, 224))")
    if _has_images(setting):
        yield _layout(setting, "store the images once, at about the size that is used", "-small")
        yield _loader(setting)


def _once(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    """Do it once: the result is the same every time."""
    call = f"{_called(finding)}(…)"
    yield _code(
        f"do it once and keep the result{_at(finding)}",
        f"- result = {call}\n+ if i not in self.kept:            # self.kept = {{}} in __init__\n"
        f"+     self.kept[i] = {call}\n+ result = self.kept[i]",
    )
    if _source(setting.files)[0]:
        yield _loader(setting)


def _called(finding: Finding) -> str:
    """The user's function as one calls it: the last two words of its place."""
    name = finding.place.rpartition(" ")[2] if finding.place else "self.prepare"
    owner, _, method = name.rpartition(".")
    return f"self.{method}" if owner and "<" not in owner else method


def _copy(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    if setting.facts and not setting.facts.pin_memory:
        yield _knob("pin_memory", True, "page-locked batches, so that copies can overlap")
    yield _code(f"do not wait for the copy{_at(finding)}", "- x.to(device)\n+ x.to(device, non_blocking=True)")


def _sync(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del setting
    yield _code(
        f"read values from the device every N steps only{_at(finding)}",
        "- total += loss.item()\n+ total += loss.detach()      # .item() once, when it is printed",
    )


def _precision(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding, setting
    yield _knob("amp", "bf16", "run the model in bf16")
    yield _knob("tf32", True, "let fp32 matmuls use TF32")


def _compute(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    """The model's own work fills the step: fewer bits, a better layout, fewer passes over memory."""
    del finding
    ran = setting.said.probes.inspection
    if ran is None or not ran.autocast:
        yield _knob("amp", "bf16", "run the model in bf16")
    if ran is not None and ran.convolutions > ran.channels_last:
        yield _knob("channels_last", True, "keep images in the layout that convolutions like best")
    if setting.said.probes.recompiles is None:  # torch.compile is not in use
        yield _knob("compile", True, "compile the model")


def _collate(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    yield _code(
        f"put the batch together with array operations{_at(finding)}",
        "- for item in items: …\n+ values = np.concatenate([item.values for item in items])",
    )
    yield _loader(setting)


def _sent(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    yield _code("send few tensors, of no larger a type than is used", "return torch.from_numpy(np.stack(items))")
    yield from _workers_to(0, setting, "no workers: nothing has to be sent")


def _threads(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding, setting
    yield _knob("worker_threads", 1, "one thread in each worker")


def _launch(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    yield _knob("compile", True, "compile the model")
    if setting.facts and setting.facts.batch_size:
        yield _knob("batch_size", 4 * setting.facts.batch_size, "a larger batch")


def _shm(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    if setting.facts and (setting.facts.prefetch_factor or 0) > 1:
        yield _knob("prefetch_factor", 1, "fewer batches in flight")
    yield Candidate(
        "code",
        "give the container a larger /dev/shm",
        None,
        None,
        "docker run --shm-size=8g …",
        "low",
        False,
        "next run",
    )


def _quota(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    yield from _workers_to(max(setting.cores, 1), setting, "as many workers as the quota has cores")


def _simple(hint: str, text: str) -> Callable[[Finding, Setting], Iterator[Candidate]]:
    def make(finding: Finding, setting: Setting) -> Iterator[Candidate]:
        del setting
        yield _code(f"{text}{_at(finding)}", hint)

    return make


CANDIDATES: dict[str, Callable[[Finding, Setting], Iterator[Any]]] = {
    "compute-bound": _compute,
    "too-few-workers": _too_few,
    "too-many-workers": _too_many,
    "worker-respawn": _respawn,
    "per-item-fetch": _per_item,
    "shuffle-thrash": _shuffle,
    "read-amplification": _amplified,
    "request-latency": _latency,
    "cold-cache": _cold,
    "io-bandwidth": _cold,
    "repeated-work": _once,
    "tokenize": _once,
    "blocking-copy": _copy,
    "host-sync": _sync,
    "no-mixed-precision": _precision,
    "collate": _collate,
    "thread-oversubscription": _threads,
    "launch-bound": _launch,
    "shm-small": _shm,
    "cpu-quota": _quota,
    "sampler": _simple("order = np.random.default_rng(seed).permutation(n)", "keep the order in an array"),
    "ipc": _sent,
    "dataset-pickle": _simple(
        "if self.table is None: self.table = np.load(path, mmap_mode='r')", "open the data in the worker, on first use"
    ),
    "ram-growth": _simple("self.items = np.asarray(items)", "hold arrays instead of Python objects"),
    "decode-cpu": _decode,
    "checkpoint-stall": _simple("torch.distributed.checkpoint.async_save(…)", "save rarer, or in the background"),
    "validation-stall": _simple("if epoch % 5 == 0: validate(…)", "validate rarer, on less, or with a larger batch"),
    "logging-stall": _simple("if step % 100 == 0: log(…)", "log rarer"),
    "gc-pause": _simple("gc.collect(); gc.freeze()", "freeze what was made at the start"),
    "python-loop": _simple("out.index_add(1, index, values)", "replace the loop by one operation on whole tensors"),
    "recompile": _simple("torch.compile(model, dynamic=True)", "compile once for all lengths"),
    "autotune-shapes": _simple("torch.backends.cudnn.benchmark = False", "fixed shapes, or no search for algorithms"),
    "padding": _simple("sampler = batches of neighbours in length", "put samples of similar length together"),
}
