"""One function for each cause that has more to say than one line."""

from collections.abc import Callable, Iterator
from typing import Any

from stoker.advise.kinds import at, code, has_images, knob, layout, loader, source, stage
from stoker.advise.setting import Setting
from stoker.records.diagnosis import Candidate, Finding

SHARDED = (
    "  def __iter__(self):\n+     worker = torch.utils.data.get_worker_info()\n"
    "+     first, step = (worker.id, worker.num_workers) if worker else (0, 1)\n"
    "+     yield from itertools.islice(samples, first, None, step)   # better: open only its own files"
)


def _workers_to(count: int, setting: Setting, why: str) -> Iterator[Candidate]:
    if count == setting.workers or (count > setting.workers and not setting.fits(count)):
        return
    if setting.is_undivided and count > 1:
        yield code(
            f"{why}; each must take a part of the stream, or every sample comes {count} times",
            SHARDED,
            changes_results=True,
        )
    else:
        yield knob("num_workers", count, why)


def _too_few(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    wanted = (
        setting.cores if setting.workers < setting.cores else 2 * setting.workers
    )  # these wait for data a part of the time
    while wanted > setting.workers and not setting.fits(wanted):
        wanted -= 1
    if wanted > setting.workers:
        yield from _workers_to(wanted, setting, f"{wanted} workers instead of {setting.workers}")
        if setting.facts and not setting.facts.persistent_workers and not setting.is_undivided:
            yield knob("persistent_workers", True, "keep them alive from epoch to epoch")


def _too_many(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    yield from _workers_to(setting.cores, setting, f"{setting.cores} workers, one for each core")


def _respawn(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    if setting.facts and not setting.facts.persistent_workers and setting.workers:
        yield knob("persistent_workers", True, "keep the workers alive from epoch to epoch")
    yield loader(setting)


def _per_item(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    yield loader(setting)
    if setting.facts and setting.facts.stream:
        yield code(f"read and yield many samples at a time{at(finding)}", "DataLoader(…, batch_size=None)")
        return
    yield code(
        f"fetch whole batches{at(finding)}",
        "+ def __getitems__(self, indices):\n+     rows = self.data[np.asarray(indices)]   # one sliced read\n"
        "+     return torch.from_numpy(rows)\n  DataLoader(…, collate_fn=lambda batch: batch)",
    )


def _shuffle(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    yield loader(setting)
    if not has_images(setting):  # each is a file of its own, which has no order on disk
        yield layout(setting, "shuffle once on disk, then read in order", "-shuffled", " --shuffle")


def _amplified(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    yield layout(setting, "store it in pieces of the size that is used", "-packed")
    yield code(f"take several samples from each read{at(finding)}", "", changes_results=True)
    yield loader(setting)


def _latency(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    if setting.facts is None:  # a loop that gets its data by itself has no workers, and no data set to hand over
        ahead = "+ pool = ThreadPoolExecutor(32)\n+ for sample in pool.map(fetch, names):   # asked for ahead, in order"
        yield code(f"ask for many samples at once{at(finding)}", ahead)
        yield stage(setting, "stage the data on a local disk first")
        return
    yield loader(setting)
    if setting.facts and setting.facts.stream:
        ahead = "+     with ThreadPoolExecutor(32) as pool:\n+         yield from pool.map(fetch, names)"
        yield code(f"ask for many samples at once{at(finding)}", f"  def __iter__(self):\n{ahead}")
    else:
        yield code(
            f"ask for all samples of a batch at once{at(finding)}",
            "+ def __getitems__(self, indices):\n+     with ThreadPoolExecutor(32) as pool:\n"
            "+         return list(pool.map(self.__getitem__, indices))",
        )
    more = 4 * max(setting.workers, 1)
    yield from _workers_to(more, setting, f"{more} workers: they wait, they do not work")
    yield stage(setting, "stage the data on a local disk first")


def _cold(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    yield stage(setting, "fetch everything before the first epoch")
    yield loader(setting)


def _decode(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    images = has_images(setting)
    hint = "image.draft('RGB', (224, 224))" if images else ""
    yield code(f"decode and transform less, with faster functions, in the workers, or once{at(finding)}", hint)
    if images:
        yield layout(setting, "store the images once, at about the size that is used", "-small")
        yield loader(setting)


def _once(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    """Do it once: the result is the same every time."""
    called = _called(finding)
    if called.partition(".")[2].startswith("__"):  # one does not call it by its name
        hint = "+ if i not in self.kept:            # self.kept = {} in __init__\n"
        hint += "+     self.kept[i] = …              # what is returned now\n+ return self.kept[i]"
    else:
        hint = f"- result = {called}(…)\n+ if i not in self.kept:            # self.kept = {{}} in __init__\n"
        hint += f"+     self.kept[i] = {called}(…)\n+ result = self.kept[i]"
    yield code(f"do it once and keep the result{at(finding)}", hint)
    if source(setting.files)[0]:
        yield loader(setting)


def _called(finding: Finding) -> str:
    """The user's function as one calls it: the last two words of its place."""
    name = finding.place.rpartition(" ")[2] if finding.place else "self.prepare"
    owner, _, method = name.rpartition(".")
    return f"self.{method}" if owner and "<" not in owner else method


def _copy(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    if setting.facts and not setting.facts.pin_memory:
        yield knob("pin_memory", True, "page-locked batches, so that copies can overlap")
    yield code(f"do not wait for the copy{at(finding)}", "- x.to(device)\n+ x.to(device, non_blocking=True)")


def _sync(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del setting
    yield code(
        f"read values from the device every N steps only{at(finding)}",
        "- total += loss.item()\n+ total += loss.detach()      # .item() once, when it is printed",
    )


def _precision(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding, setting
    yield knob("amp", "bf16", "run the model in bf16")
    yield knob("tf32", True, "let fp32 matmuls use TF32")


def _compute(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    """The model's own work fills the step: fewer bits, a better layout, fewer passes over memory."""
    del finding
    ran = setting.said.probes.inspection
    if ran is None or not ran.autocast:
        yield knob("amp", "bf16", "run the model in bf16")
    if ran is not None and ran.convolutions > ran.channels_last:
        yield knob("channels_last", True, "keep images in the layout that convolutions like best")
    if setting.said.probes.recompiles is None:  # torch.compile is not in use
        yield knob("compile", True, "compile the model")


def _collate(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    yield code(
        f"put the batch together with array operations{at(finding)}",
        "- for item in items: …\n+ values = np.concatenate([item.values for item in items])",
    )
    yield loader(setting)


def _sent(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    yield code("send few tensors, of no larger a type than is used", "return torch.from_numpy(np.stack(items))")
    yield from _workers_to(0, setting, "no workers: nothing has to be sent")


def _threads(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    cores = int(setting.cores)
    if (setting.said.probes.threads or 0) > cores:
        yield knob("threads", cores, "as many threads as cores")
        hint = f"+ torch.set_num_threads({cores})"
        yield code("ask for no more threads than there are cores", hint, changes_results=True)
    if setting.facts and setting.facts.num_workers:
        yield knob("worker_threads", 1, "one thread in each worker")


def _launch(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    yield knob("compile", True, "compile the model")
    if setting.facts and setting.facts.batch_size:
        yield knob("batch_size", 4 * setting.facts.batch_size, "a larger batch")


def _shm(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    del finding
    if setting.facts and (setting.facts.prefetch_factor or 0) > 1:
        yield knob("prefetch_factor", 1, "fewer batches in flight")
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
        yield code(f"{text}{at(finding)}", hint)

    return make


def _collected(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    """A collection that the script asks for is not needed; one that comes by itself has less to look at."""
    del setting
    if finding.place:
        yield code(f"do not ask for a collection in the loop{at(finding)}", "- gc.collect()")
    else:
        yield code("freeze what was made at the start", "gc.collect(); gc.freeze()")


def _balance(finding: Finding, setting: Setting) -> Iterator[Candidate]:
    """What makes one rank slow is what it is given, or where it runs; only the first can be changed in the script."""
    del setting
    rank = next((one.value for one in finding.evidence if "rank to arrive" in one.name), "…")
    yield code(
        f"give each rank the same work: rank {rank} is last",
        "- mine = files[rank::world_size]\n+ mine = balanced(files, sizes)[rank]   # by size, not by number",
    )


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
    "logging-stall": _simple("if step % 100 == 0: …", "log, or do what is done there, rarer"),
    "straggler": _balance,
    "gc-pause": _collected,
    "python-loop": _simple("out.index_add(1, index, values)", "replace the loop by one operation on whole tensors"),
    "recompile": _simple("torch.compile(model, dynamic=True)", "compile once for all lengths"),
    "autotune-shapes": _simple("torch.backends.cudnn.benchmark = False", "fixed shapes, or no search for algorithms"),
    "padding": _simple("sampler = batches of neighbours in length", "put samples of similar length together"),
}
