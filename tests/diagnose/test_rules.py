"""Every rule finds its cause in numbers that mean it, and nothing in those that do not."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attribute.tracks import MS, Script
from diagnose.runs import STEP_S, Bench, Inspection, Ordering, facts, loader, made, phases, slow, waiting, worker
from stoker.diagnose import CAUSES, RULES, SURE, data, diagnose, noise, order
from stoker.diagnose.causes import GAIN
from stoker.diagnose.facts import Facts
from stoker.diagnose.gather import others_share
from stoker.records import (
    Cold,
    Collect,
    Container,
    Drain,
    Finding,
    HotLine,
    Kind,
    Line,
    LineOps,
    Making,
    NoBatch,
    Pass,
    Phase,
    Probes,
    Replay,
    WorkerBatch,
)


def row(**changes: Any) -> WorkerBatch:
    base = WorkerBatch(0, 10, 1, 0.1, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0)
    return dataclasses.replace(base, **changes)


def same(count: int) -> dict[str, tuple[WorkerBatch, ...]]:
    rows = tuple(row(result_hash=i + 1) for i in range(count))
    return {"fresh": rows, "again": rows}


def rates(**seconds: float) -> tuple[Bench, ...]:
    return tuple(Bench(name.replace("_", " "), 2, (), (), 0, 1, 10, value, None) for name, value in seconds.items())


def first_batches(*seconds: float) -> tuple[Pass, ...]:
    return tuple(Pass(1, True, 0, 1, value, 0.0, None, 50, 100, True, False, 0.0) for value in seconds)


def named(run: Facts, **changes: Any) -> Facts:
    return dataclasses.replace(run, named=dataclasses.replace(run.named, **changes))


def parts(**seconds: float) -> Facts:
    run = facts()
    assert run.said.epoch_parts is not None
    return dataclasses.replace(run, said=dataclasses.replace(run.said, epoch_parts={**run.said.epoch_parts, **seconds}))


def spent(phase: Any, seconds: float) -> Facts:
    run = facts(device_step_s=0.02)
    extra = dataclasses.replace(run.named.phases[0], name=phase, seconds=seconds)
    return named(run, phases=(*run.named.phases, extra))


def again(step_s: float) -> Replay:
    return Replay(10, 10 * step_s, 0.01, 0.0, None, None, 100, None, known=True)


def inspected(**changes: Any) -> Inspection:
    base = Inspection(1000, 1e9, {"float32": 1e9}, 0, 0, (), False, "high")
    return dataclasses.replace(base, **changes)


def host_busy(**changes: Any) -> Facts:
    run = facts(device_step_s=0.02, main_cpu_s=0.09, probes=Probes(inspection=inspected(**changes)))
    return phases(run, forward=0.05, backward=0.05)


def sick() -> dict[str, Facts]:
    """For each cause a run that suffers from it."""
    quota = Container(0.5, 5.0, 10.0, None, None)
    small = Container(None, None, 10.0, 1000, 0)
    text = worker(makings=(Making(8, 1.0, 0, 0.95, "train.py:5 encode", ()),))
    creeping = worker(batches=tuple(row(end_ns=int(i * 1e9), private_bytes=(10 + 20 * i) << 20) for i in range(6)))
    seen = facts().seen
    return {
        "sampler": facts(probes=Probes(ordering=Ordering(5.0, 100)), compute_s=0.04, device_step_s=None),
        "tokenize": waiting(real=slow(5e-3), seen=dataclasses.replace(seen, workers=(text,))),
        "collate": waiting(real=slow(5e-3, collate_s=4.8e-3), probes=Probes(default_collate=False)),
        "per-item-fetch": waiting({"fresh": slow(2e-4)}, real=slow(2e-4, mean_wall_s=6e-3, mean_net_s=1e-3)),
        "shuffle-thrash": waiting({"fresh": slow(5e-3), "sequential": slow(5e-4)}, real=slow(5e-3)),
        "read-amplification": waiting(
            {"fresh": slow(5e-3, read_bytes=5e7, result_bytes=1e5)}, real=slow(5e-3, read_bytes=5e7, system_s=4e-3)
        ),
        "request-latency": waiting(
            {"fresh": slow(6e-3, blocked_s=5.9e-3, process_cpu_s=1e-4)},
            real=slow(6e-3, blocked_s=5.9e-3, process_cpu_s=1e-4), loader_s=0.1,
        ),
        "io-bandwidth": waiting(
            {"fresh": slow(3e-3, blocked_s=2.9e-3, process_cpu_s=1e-4)},
            real=slow(6e-3, blocked_s=5.9e-3, process_cpu_s=1e-4), loader_s=0.1,
        ),
        "cold-cache": waiting(
            {"fresh": slow(6e-3, blocked_s=5.9e-3), "second": slow(1e-4)}, real=slow(6e-3, blocked_s=5.9e-3)
        ),
        "repeated-work": waiting({"fresh": slow(5e-3), "again": slow(5e-3)}, real=slow(5e-3), benches=same(4)),
        "decode-cpu": waiting(real=slow(6e-3)),
        "too-few-workers": waiting(real=slow(3e-3), workers=1, facts=loader(num_workers=1)),
        "too-many-workers": waiting(
            real=slow(5e-3), workers=12, facts=loader(num_workers=12), cores=2.0,
            probes=Probes(benches=rates(cores=0.02, as_is=0.09)), loader_s=0.1,
        ),
        "thread-oversubscription": waiting(real=slow(5e-3), probes=Probes(benches=rates(threads=0.02, as_is=0.09))),
        "cpu-quota": waiting(real=slow(5e-3), probes=Probes(container=quota)),
        "shm-small": waiting(real=slow(5e-3, sent_bytes=1e6), probes=Probes(container=small)),
        "ipc": waiting(real=slow(1e-4, tensors=100.0, mean_wall_s=6e-3), loader_s=0.1),
        "worker-respawn": named(
            facts(
                device_step_s=0.0, facts=loader(persistent_workers=False), makers=tuple(worker(pid=i) for i in range(4))
            ),
            passes=first_batches(2.0, 2.0, 2.0),
        ),
        "dataset-pickle": facts(probes=Probes(pickled_bytes=10**9, pickle_s=4.0)),
        "ram-growth": facts(makers=(creeping,)),
        "host-sync": named(phases(facts(device_step_s=0.05), sync=0.05, forward=0.05), syncs=300),
        "logging-stall": spent("logging", 9.0),
        "gc-pause": phases(spent("gc", 9.0), gc=0.06, forward=0.04),
        "checkpoint-stall": dataclasses.replace(parts(checkpoint=3.0), device_step_s=None),
        "validation-stall": dataclasses.replace(parts(validation=5.0), device_step_s=None),
        "launch-bound": host_busy(),
        "no-mixed-precision": facts(probes=Probes(inspection=inspected(matmul_precision="highest", half_ratio=3.0))),
        "padding": facts(probes=Probes(padding_share=0.6)),
        "recompile": facts(probes=Probes(recompiles=40, compile_s=8.0, shapes=40, shaped_batches=60)),
        "autotune-shapes": facts(
            compute_s=0.03, compute_worst_s=0.03, device_step_s=0.03,
            probes=Probes(shapes=90, shaped_batches=100, cudnn_benchmark=True, replays=(again(0.03),)),
        ),
    }  # fmt: skip


def found(run: Facts) -> dict[str, Finding]:
    return {one.cause: one for rule in RULES if (one := rule(run)) is not None}


def test_a_healthy_run_has_no_finding() -> None:
    assert found(facts()) == {}


@given(
    workers=st.integers(0, 8),
    samples=st.sampled_from((1, 4, 8, 32, 128, 512)),
    blocked=st.sampled_from((0.0, 0.1, 0.3, 0.45, 0.7, 1.0)),
    collated=st.floats(0, 0.9),
    opens=st.sampled_from((0.0, 1.0)),
    calls=st.integers(1, 5000),
    benched=st.booleans(),
    by_hand=st.booleans(),
)
def test_a_loop_that_waits_for_its_batches_is_never_left_without_a_cause(
    workers: int, samples: int, blocked: float, collated: float, opens: float, calls: int, benched: bool, by_hand: bool
) -> None:
    """However the making of a batch is spent: workers at it all the time, computing on two cores, waiting for files."""
    span_s = STEP_S if workers else 0.08
    wall_s = span_s * max(workers, 1) / samples
    cpu_s = min(wall_s * (1 - blocked), min(2, max(workers, 1)) * span_s / samples)
    blocked_s = min(wall_s * blocked, wall_s - cpu_s)
    net = slow(cpu_s + blocked_s, samples=samples, blocked_s=blocked_s, collate_s=collated * wall_s, opens=opens)
    net = dataclasses.replace(net, cpu_s=cpu_s, process_cpu_s=cpu_s, mean_cpu_s=cpu_s)
    queued = dataclasses.replace(net, wall_s=wall_s, mean_wall_s=wall_s, queued_s=wall_s - net.net_s)
    probes = Probes(default_collate=not by_hand, makings=(Making(samples, span_s, calls * samples, None, None, ()),))
    bench = {"fresh": net} if benched else {}
    run = waiting(
        bench, real=queued, workers=workers, loader_s=span_s, probes=probes, facts=loader(num_workers=workers)
    )
    assert [one for one in found(run).values() if one.confidence >= SURE]


@pytest.mark.parametrize("cause", sick())
def test_a_run_that_suffers_from_a_cause_is_told_so(cause: str) -> None:
    run = sick()[cause]
    findings = found(run)
    assert cause in findings
    assert order(list(findings.values()), run)[0].cause == cause
    assert findings[cause].evidence
    assert cause in CAUSES


@pytest.mark.parametrize("cause", sick())
def test_a_gain_never_exceeds_what_the_loop_reaches_on_cached_batches(cause: str) -> None:
    run = sick()[cause]
    gain = found(run)[cause].gain_max
    once_in_an_epoch = {"worker-respawn", "checkpoint-stall", "validation-stall", "dataset-pickle", "recompile"}
    in_the_model = {"no-mixed-precision", "padding", "launch-bound", "host-sync", "logging-stall", "gc-pause"}
    if gain is not None and cause not in once_in_an_epoch | in_the_model:
        assert GAIN <= gain <= run.potential * 1.001


def cold(cold_s: float, warm_s: float, *, dropped: bool = True) -> Probes:
    size = 8 << 20
    return Probes(cold=Cold(8, size, size if dropped else 0, (cold_s / 8,) * 8, (warm_s / 8,) * 8))


def test_files_that_are_slow_with_their_pages_dropped_tell_a_first_touch_from_a_slow_disk() -> None:
    """Half a megabyte a sample from storage: 50 ms cold by the files themselves, next to nothing warm."""
    made_cold = slow(6e-2, blocked_s=5.5e-2, process_cpu_s=5e-3, disk_bytes=5e5, read_bytes=5e5)
    run = waiting(real=made_cold, probes=cold(0.8, 0.002), workers=0, epochs=5)
    names = [item.name for item in found(run)["cold-cache"].evidence]
    assert "files read with their pages dropped" in names
    warm_too = dataclasses.replace(run, probes=cold(0.8, 0.75))
    assert "cold-cache" not in found(warm_too)
    not_dropped = dataclasses.replace(run, probes=cold(0.8, 0.002, dropped=False))
    assert "cold-cache" not in found(not_dropped)


def test_a_simulated_device_gains_in_half_precision_only_what_it_says_itself() -> None:
    fp32 = {"matmul_precision": "highest"}
    sim = dataclasses.replace(facts().track, device="sim")
    for ratio, is_found in ((None, False), (1.0, False), (3.0, True)):
        run = facts(probes=Probes(inspection=inspected(**fp32, half_ratio=ratio)), track=sim)
        assert ("no-mixed-precision" in found(run)) == is_found


def test_confidence_falls_with_the_spread_of_what_it_rests_on() -> None:
    names = ("step", "compute", "loader", "made")
    calm, loud = (dict.fromkeys(names, value) for value in (0.01, 0.5))
    collates: dict[str, Any] = {"real": slow(5e-3, collate_s=4.8e-3), "probes": Probes(default_collate=False)}
    sure, unsure = (found(waiting(**collates, errors=errors))["collate"].confidence for errors in (calm, loud))
    assert 0.5 < unsure < sure <= 0.99


def test_every_cause_but_the_two_good_answers_has_a_rule() -> None:
    rules = {rule.__name__.replace("_", "-") for rule in RULES}
    assert rules == set(CAUSES) - {"compute-bound", "healthy"}


def test_a_wait_that_only_others_use_of_the_cores_explains_is_not_blamed_on_the_data() -> None:
    run = waiting({"fresh": slow(1e-5)}, real=made(net_s=1e-5, mean_net_s=1e-5, mean_cpu_s=1e-5, mean_wall_s=6e-3))
    assert not run.is_data_bound
    assert found(run) == {}


def test_one_line_that_starts_many_operations_on_parts_is_a_python_loop() -> None:
    line = LineOps("train.py", 7, "forward", 600, 600, 300)
    run = host_busy(lines=(line,))
    track = dataclasses.replace(
        run.track, lines=(type(run.track.lines[0])("train.py", 7, "forward", "x") if run.track.lines else _line(),),
        sample_lines=(0,) * 90, sample_times_ns=tuple(range(90)),
    )  # fmt: skip
    causes = found(dataclasses.replace(run, track=track))
    assert "python-loop" in causes
    assert "launch-bound" not in causes  # most operations are that loop's: vectorised, they are gone
    layers = dataclasses.replace(line, picks=0, repeats=12)
    other = dataclasses.replace(host_busy(lines=(layers,)), track=track)
    assert "python-loop" not in found(other)
    assert "launch-bound" in found(other)
    few = dataclasses.replace(host_busy(lines=(dataclasses.replace(line, ops=100, in_one_call=100),)), track=track)
    assert "launch-bound" in found(few)
    cell = dataclasses.replace(line, picks=0, repeats=150)  # one weight again and again: a recurrent net by hand
    assert "python-loop" in found(dataclasses.replace(host_busy(lines=(cell,)), track=track))


def test_text_that_the_loop_itself_tokenises_is_found_up_to_what_the_step_takes_for_it() -> None:
    def tokenized(seconds: float) -> Finding | None:
        return found(host_busy(lines=(), text_s=seconds, text_place="train.py:9 encode")).get("tokenize")

    half, whole = tokenized(0.05), tokenized(100.0)  # a profiled step is slower than others
    assert half is not None
    assert whole is not None
    assert half.place == "train.py:9 encode"
    assert half.gain_max == whole.gain_max == pytest.approx(2)
    assert tokenized(0.001) is None


def test_many_operations_of_one_call_into_torch_are_no_python_loop() -> None:
    line = LineOps("train.py", 7, "forward", 600, 600, 300, 60)
    track = dataclasses.replace(
        facts().track, lines=(_line(),), sample_lines=(0,) * 90, sample_times_ns=tuple(range(90))
    )
    loop, layer = (
        dataclasses.replace(host_busy(lines=(dataclasses.replace(line, entries=n),)), track=track) for n in (300, 2)
    )
    assert "python-loop" in found(loop)
    assert "python-loop" not in found(layer)


def beside(leaf: str, *, after: bool, places: tuple[str, ...] = ("train.py:1",)) -> Facts:
    """100 steps; for half of each, after it or before its forward, the line `train.py:7` is seen."""
    script, samples = Script().span(Kind.ITER, 1, 1), []
    for _ in range(100):
        script.span(Kind.NEXT, 1, 1)
        if not after:
            samples += [(script.now + i * MS, 0) for i in range(1, 50)]
            script.own(50)
        script.span(Kind.FORWARD, 20).span(Kind.BACKWARD, 20).span(Kind.OPTIMIZER, 9, 1)
        if after:
            samples += [(script.now + i * MS, 0) for i in range(1, 50)]
            script.own(50)
    line = Line("train.py", 7, "Board.update", leaf)
    track = script.track([loader()], samples=samples, lines=[line])
    run = phases(facts(track=track, device_step_s=0.02), forward=0.05, other=0.05)
    spent = dataclasses.replace(run.named.phases[0], name="other", seconds=8.0)
    probes = Probes(inspection=inspected(places=places))
    return dataclasses.replace(named(run, phases=(*run.named.phases, spent)), probes=probes)


@pytest.mark.parametrize(
    ("leaf", "after", "places", "logs"),
    [
        ("matplotlib.figure.Figure.savefig", True, (), True),
        ("matplotlib.figure.Figure.savefig", False, (), False),  # what comes before the forward may be its input
        ("torch.optim.swa_utils.update", True, (), False),
        ("train.Board.update", True, ("train.py:1",), True),  # metrics in plain Python
        ("train.Board.update", True, ("train.py:7",), False),  # an average of the weights, by methods of tensors
        ("train.Board.update", True, (), False),  # nothing was inspected
    ],
)
def test_what_comes_after_a_step_and_computes_nothing_for_the_next_is_logging(
    leaf: str, after: bool, places: tuple[str, ...], logs: bool
) -> None:
    assert ("logging-stall" in found(beside(leaf, after=after, places=places))) == logs


@pytest.mark.parametrize(("calls", "fetches"), [(16, False), (72, True), (294, False)])
def test_few_short_calls_fetch_a_sample_and_long_or_many_ones_work_on_it(calls: int, fetches: bool) -> None:
    """A blur by three hundred calls of numpy, seen in a script of a stranger: no sliced read would spare them."""
    profiled = worker(makings=(Making(8, 1.0, 8 * calls, None, None, ()),))
    seen = dataclasses.replace(facts().seen, workers=(profiled,))
    run = waiting({"fresh": slow(2e-4)}, real=slow(2e-4, mean_wall_s=6e-3, mean_net_s=1e-3), seen=seen)
    assert ("per-item-fetch" in found(run)) == fetches


@pytest.mark.parametrize(("system_s", "default", "size", "shared"), [
    (4e-4, True, 4e5, True), (1e-4, True, 4e5, False), (4e-4, False, 4e5, False), (4e-4, True, 4e3, False),
])  # fmt: skip
def test_batches_that_are_only_copied_into_shared_memory_are_transport(
    system_s: float, default: bool, size: float, shared: bool
) -> None:
    """Seen in a script of a stranger, which was faster without its workers."""
    took = slow(5e-3, collate_s=4.9e-3, cpu_s=5e-4, system_s=system_s, sent_bytes=size)
    run = waiting(real=took, probes=Probes(default_collate=default))
    assert ("ipc" in found(run)) == shared


@pytest.mark.parametrize(("received_s", "blamed"), [(0.04, True), (0.001, False)])
def test_batches_that_the_main_thread_unpacks_are_transport(received_s: float, *, blamed: bool) -> None:
    """The loader alone takes 65 ms of a step of 100 ms, because the loop cannot compute while it receives."""
    probes = Probes(drains=(Drain(10, 0.65, 10 * received_s, 2),))
    run = waiting(real=slow(1e-5), loader_s=0.065, probes=probes)
    assert ("ipc" in found(run)) == blamed


@pytest.mark.parametrize(("send_s", "blamed"), [(0.08, True), (0.01, False)])
def test_batches_that_take_long_to_send_are_transport_however_few_their_tensors(send_s: float, *, blamed: bool) -> None:
    """Two workers, a batch every 100 ms, made in 0.3 ms."""
    run = waiting(real=slow(1e-5, send_s=send_s / 32, tensors=20.0), loader_s=0.1)
    assert ("ipc" in found(run)) == blamed


def test_workers_do_not_take_the_samplers_time_off_the_main_thread() -> None:
    made_s = 4e-4
    alone: dict[str, Any] = {"workers": 0, "facts": loader(num_workers=0), "device_step_s": None, "loader_s": 0.013}
    run = waiting({"fresh": slow(made_s)}, real=slow(made_s), probes=Probes(ordering=Ordering(6.6, 100)), **alone)
    gains = {cause: one.gain_max or 0.0 for cause, one in found(run).items()}
    assert max(gains, key=lambda cause: gains[cause]) == "sampler"
    assert 1.1 < gains["too-few-workers"] < 1.2  # as much as making a batch takes
    without = found(waiting({"fresh": slow(made_s)}, real=slow(made_s), **alone))
    assert (without["too-few-workers"].gain_max or 0.0) > 4


def test_workers_bring_no_more_than_making_takes_where_crowded_cores_stretch_the_step() -> None:
    """A step of 144 ms, 43 on cached batches; the sampler takes 40, making a batch one."""
    alone: dict[str, Any] = {"workers": 0, "facts": loader(num_workers=0), "device_step_s": None, "loader_s": 0.042}
    times: dict[str, Any] = {"step_s": 0.144, "wall_step_s": 0.44, "wait_s": 0.126, "compute_s": 0.043}
    ordered = Probes(ordering=Ordering(4.0, 100))
    run = facts(real=slow(3e-5), probes=ordered, compute_worst_s=0.045, **alone, **times)
    assert "sampler" in found(run)
    assert "too-few-workers" not in found(run)


@pytest.mark.parametrize(("arrays", "blamed"), [(2, True), (768, False)])
def test_workers_that_would_send_hundreds_of_arrays_are_not_advised(arrays: int, *, blamed: bool) -> None:
    alone = waiting(real=slow(3e-3), workers=0, facts=loader(num_workers=0))
    track = dataclasses.replace(alone.track, batch_arrays=((1, arrays),))
    assert ("too-few-workers" in found(dataclasses.replace(alone, track=track))) == blamed


@pytest.mark.parametrize(("wait_s", "named"), [(0.08, True), (0.04, False)])
def test_work_that_fills_one_core_is_named_where_workers_would_cost_what_they_bring(
    wait_s: float, *, named: bool
) -> None:
    made_s = wait_s / 32
    times: dict[str, Any] = {"wait_s": wait_s, "compute_s": STEP_S - wait_s, "compute_worst_s": STEP_S - wait_s}
    run = waiting(real=slow(made_s), workers=0, facts=loader(num_workers=0), device_step_s=None, **times)
    run = dataclasses.replace(run, track=dataclasses.replace(run.track, batch_arrays=((1, 768),)))
    assert not [one for one in found(run).values() if one.confidence >= SURE]
    assert (data.decoded_beside_idle_cores(run) is not None) == named


def test_saving_counts_also_where_the_device_is_busy_otherwise() -> None:
    busy = dataclasses.replace(parts(checkpoint=3.0), device_step_s=0.1)  # all of the forecast epoch
    assert found(busy)["checkpoint-stall"].gain_max == pytest.approx(1.3)
    validated = dataclasses.replace(parts(validation=3.0), device_step_s=0.1)
    assert "validation-stall" not in found(validated)


def test_full_cores_are_blamed_on_what_competes_for_them_first() -> None:
    run = waiting(real=slow(6e-3), probes=Probes(benches=rates(threads=0.02, as_is=0.05)))
    causes = [one.cause for one in order(list(found(run).values()), run)]
    assert causes.index("thread-oversubscription") < causes.index("decode-cpu")
    gains = {cause: one.gain_max or 0.0 for cause, one in found(run).items()}
    assert gains["decode-cpu"] > gains["thread-oversubscription"]


def _line() -> Any:
    from stoker.records import Line

    return Line("train.py", 7, "forward", "train.forward")


def test_a_straggler_is_the_rank_that_always_comes_last() -> None:
    from stoker.records import ARG, Kind

    def rank(pid: int, *late_ns: int) -> Any:
        begin, end = Kind.BACKWARD << 1, Kind.BACKWARD << 1 | 1
        assert ARG
        times = [t for i in range(20) for t in (i * 10**8 + late_ns[i % len(late_ns)], i * 10**8 + 90_000_000)]
        codes = [begin, end] * 20
        return dataclasses.replace(facts().track, pid=pid, rank=pid, times_ns=tuple(times), codes=tuple(codes))

    run = facts()
    late = dataclasses.replace(run.seen, tracks=(rank(0, 10_000_000), rank(1, 70_000_000)))
    level = dataclasses.replace(run.seen, tracks=(rank(0, 10_000_000), rank(1, 10_500_000)))
    assert found(dataclasses.replace(run, seen=late))["straggler"].evidence[0].value == "1"
    assert "straggler" not in found(dataclasses.replace(run, seen=level))
    # Last in four steps of five, but by little; the fifth makes up for it.
    jitter = dataclasses.replace(run.seen, tracks=(rank(0, *[10_000_000] * 4, 50_000_000), rank(1, 20_000_000)))
    assert "straggler" not in found(dataclasses.replace(run, seen=jitter))


def test_copies_that_wait_are_found_and_others_are_not() -> None:
    from stoker.records import ARG, Kind

    def copies(waits: int) -> Facts:
        begin = Kind.COPY << 1 | waits << ARG
        track = dataclasses.replace(
            facts().track, times_ns=tuple(range(0, 40_000_000, 1_000_000)), codes=(begin, begin | 1) * 20
        )
        return phases(facts(device_step_s=0.06, track=track), transfer=0.03, forward=0.07)

    assert "blocking-copy" in found(copies(1))
    assert "blocking-copy" not in found(copies(0))


def test_copies_that_should_not_wait_count_if_they_often_are_long_and_not_if_one_waited_for_a_core() -> None:
    def copies(long: int) -> Facts:
        begin, times = Kind.COPY << 1, []
        for i in range(40):
            times += [i * 100_000_000, i * 100_000_000 + (60_000_000 if i < long else 100_000)]
        track = dataclasses.replace(facts().track, times_ns=tuple(times), codes=(begin, begin | 1) * 40)
        return phases(facts(device_step_s=0.06, track=track), transfer=0.03, forward=0.07)

    assert "blocking-copy" in found(copies(20))
    assert "blocking-copy" not in found(copies(2))


def test_turns_that_differ_too_much_do_not_speak_against_more_workers() -> None:
    def run(*rates_s: float) -> Facts:
        benches = tuple(Bench("cores", 2, (1, 2), (), 0, 1, 8, seconds, None) for seconds in rates_s)
        benches += (Bench("as is", 1, (1,), (), 0, 1, 8, 0.07, None),)
        return waiting(real=slow(3e-3), workers=1, facts=loader(num_workers=1), probes=Probes(benches=benches))

    assert "too-few-workers" not in found(run(0.07, 0.071))
    assert found(run(0.037, 0.11))["too-few-workers"].confidence == noise.UNTRIED
    assert found(run(0.037, 0.039))["too-few-workers"].confidence > noise.UNTRIED


def test_more_workers_that_others_kept_from_the_cores_are_held_against_what_they_had_of_them() -> None:
    def run(queued_s: float) -> Facts:
        rows = tuple(row(begin_ns=0, end_ns=int(1e9), queued_s=queued_s, user_s=1 - queued_s) for _ in range(8))
        benches = (
            Bench("cores", 2, (1, 2), (), 0, 1, 8, 0.069, None),
            Bench("as is", 1, (3,), (), 0, 1, 8, 0.07, None),
        )
        made = waiting(real=slow(3e-3), workers=1, facts=loader(num_workers=1), probes=Probes(benches=benches))
        workers = (worker(pid=1, batches=rows), worker(pid=2, batches=rows))
        return dataclasses.replace(made, seen=dataclasses.replace(made.seen, workers=workers))

    assert "too-few-workers" not in found(run(0.0))
    assert "too-few-workers" in found(run(0.5))


@pytest.mark.parametrize(("prepares", "logs"), [("json.encoder.iterencode", True), ("torch.functional.norm", False)])
def test_without_a_loader_a_line_that_logs_what_it_makes_is_no_wait_for_data(prepares: str, logs: bool) -> None:
    lines = (Line("train.py", 9, "main", prepares), Line("train.py", 9, "main", "logging.StreamHandler.emit"))
    by_hand = facts(device_step_s=None, facts=None, workers=0, real=None)
    track = dataclasses.replace(
        by_hand.track, lines=lines, sample_lines=(0,) * 95 + (1,) * 5, sample_times_ns=tuple(range(100))
    )
    run = phases(dataclasses.replace(by_hand, track=track), data_wait=0.08, forward=0.02)
    waited = dataclasses.replace(run.named.phases[0], name="data_wait")
    assert ("logging-stall" in found(named(run, phases=(waited, *run.named.phases[1:])))) == logs


@pytest.mark.parametrize(("sample_s", "blamed"), [(1e-3, True), (5e-5, False)])
def test_a_loop_without_workers_is_slowed_by_its_data_only_as_far_as_that_is_seen(
    sample_s: float, blamed: bool
) -> None:
    """Its replays were three times as fast, in a moment when nobody else used the cores."""
    batch_s = 32 * sample_s
    run = facts(
        {"fresh": slow(sample_s)}, workers=0, facts=loader(num_workers=0), device_step_s=None, real=slow(sample_s),
        wait_s=batch_s, loader_s=batch_s, compute_s=0.03, compute_worst_s=0.03,
    )  # fmt: skip
    causes = found(run)
    assert ("too-few-workers" in causes) == blamed
    assert blamed or not causes
    for one in causes.values():
        assert one.gain_max is not None
        assert one.gain_max <= 0.1 / (0.1 - 1.5 * batch_s) + 0.001


def test_a_bench_of_smaller_batches_is_held_against_as_many_samples() -> None:
    blocks: dict[str, Any] = {"blocked_s": 5.9e-3, "process_cpu_s": 1e-4}
    fresh = slow(6e-3, samples=12, **blocks)
    findings = found(waiting({"fresh": fresh}, real=slow(6e-3, **blocks), loader_s=0.1))
    assert "request-latency" in findings
    assert "io-bandwidth" not in findings


def test_many_operations_on_next_to_nothing_are_launch_bound_on_the_host_too() -> None:
    def run(moved_bytes: float | None, **changes: Any) -> Facts:
        inspection = inspected(**{"ops": 3000, "flops": 1e6, "moved_bytes": moved_bytes, **changes})
        busy = facts(device_step_s=None, main_cpu_s=0.09, probes=Probes(inspection=inspection))
        return phases(busy, forward=0.05, backward=0.05)

    gain = found(run(1e6))["launch-bound"].gain_max
    assert gain is not None
    assert gain > 10
    assert "launch-bound" not in found(run(3e8))  # their work is most of the step
    assert "launch-bound" not in found(run(1e6, flops=1e9))
    assert "launch-bound" not in found(run(1e7, flops=1e7, batch_share=0.05))  # a short batch among long ones
    assert "launch-bound" in found(run(1e7, flops=1e7, batch_share=1.0))
    assert "launch-bound" not in found(run(1e6, ops=100))
    assert "launch-bound" not in found(run(1e6, ops=1000))  # 90 µs each: some of them work, a fused layer say
    assert "launch-bound" not in found(run(None))  # recorded before it was measured


def test_only_what_the_first_epoch_waited_longer_is_a_cold_cache() -> None:
    def run(waits_s: tuple[float, float], steps_s: tuple[float, float]) -> Facts:
        steps = tuple(
            dataclasses.replace(
                step, epoch=int(i >= 50), seconds=steps_s[i >= 50], parts={"data_wait": waits_s[i >= 50]}
            )
            for i, step in enumerate(facts().named.steps)
        )
        cold = [row(begin_ns=i, end_ns=i + 10, samples=1, blocked_s=0.1 if i < 50 else 0.0) for i in range(150)]
        return named(waiting(makers=(worker(batches=tuple(cold)),), compute_s=0.09), steps=steps)

    gain = found(run((0.3, 0.0), (0.5, 0.1)))["cold-cache"].gain_max
    assert gain == pytest.approx(1 + 0.3 / (3 * 0.1))
    assert "cold-cache" not in found(run((0.01, 0.0), (0.5, 0.1)))  # others had the cores then


def test_memory_that_grows_until_all_of_the_data_set_was_touched_is_no_leak() -> None:
    def run(*sizes_mib: int) -> Facts:
        rows = tuple(row(end_ns=int(i * 1e9), private_bytes=size << 20) for i, size in enumerate(sizes_mib))
        return facts(makers=(worker(batches=rows),))

    assert "ram-growth" in found(run(10, 30, 50, 65, 80, 95, 105, 115, 125, 132))  # slower, as an epoch goes on
    assert "ram-growth" not in found(run(10, 30, 50, 65, 80, 95, 110, 111, 111, 112))


def test_workers_that_take_each_other_work_are_too_many_also_while_others_have_the_cores() -> None:
    def run(cpu_s: float) -> Facts:
        rows = tuple(row(begin_ns=0, end_ns=int(1e9), process_cpu_s=cpu_s) for _ in range(20))
        crowded = waiting(real=slow(5e-3), workers=12, facts=loader(num_workers=12), cores=2.0, loader_s=0.1)
        seen = dataclasses.replace(crowded.seen, workers=(worker(pid=9, batches=rows),))
        benches = (Bench("cores", 2, (9,), (), 0, 1, 10, 0.1, None),)  # no faster: somebody else computed
        return dataclasses.replace(crowded, seen=seen, probes=Probes(benches=benches))

    assert "too-many-workers" in found(run(1e-3))
    assert "too-many-workers" not in found(run(4e-3))


def test_threads_do_not_compete_for_cores_that_are_idle() -> None:
    probes = Probes(benches=rates(threads=0.02, as_is=0.09))
    read = slow(5e-3, blocked_s=4.9e-3, cpu_s=1e-4, process_cpu_s=1e-4, mean_cpu_s=1e-4)
    assert "thread-oversubscription" not in found(waiting(real=read, probes=probes))


@pytest.mark.parametrize(
    ("text", "shm_bytes", "blamed"),
    [
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left", 64 << 20, True),
        ("RuntimeError: DataLoader worker (pid 1) is killed by signal: Bus error. It is possible", 64 << 20, True),
        ("RuntimeError: DataLoader worker (pid 1) is killed by signal: Bus error. It is possible", 64 << 30, False),
        ("FileNotFoundError: no such file", 64 << 20, False),
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left", None, False),
    ],
)
def test_a_run_that_shared_memory_ended_is_told_so_first(text: str, shm_bytes: int | None, blamed: bool) -> None:
    fed = sick()["decode-cpu"]
    for run in (facts(), fed):
        track = dataclasses.replace(run.track, no_batches=(NoBatch(text, shm_bytes, 0),))
        assert ("shm-small" in found(dataclasses.replace(run, track=track))) is blamed
        said = diagnose(run.seen, track, dataclasses.replace(run.named, steps=()), run.said)
        assert (said.verdict == "shm-small") is blamed  # also if there was no step to judge


def test_workers_that_take_the_cores_from_the_model_are_seen_though_the_loop_never_waits() -> None:
    """Batches are there in time, but a step on cached ones takes half as long: both compute on the same cores."""
    shared: dict[str, Any] = {"wait_s": 0.001, "compute_s": 0.05, "compute_worst_s": 0.051, "main_cpu_s": 0.05}
    run = facts(real=slow(2.8e-3), loader_s=0.045, device_step_s=None, **shared)
    assert run.made_s is not None
    assert run.made_s < 0.05
    assert "decode-cpu" in found(run)
    assert "decode-cpu" not in found(dataclasses.replace(run, real=slow(1.8e-3)))
    assert "decode-cpu" not in found(dataclasses.replace(run, device_step_s=0.05))


@pytest.mark.parametrize(
    ("wait_s", "cpu_s", "cause"),
    [(0.04, 0.098, "decode-cpu"), (0.04, 0.062, "request-latency"), (0.01, 0.098, None)],
)
def test_a_loop_that_gets_its_data_by_hand_is_told_what_that_costs(wait_s: float, cpu_s: float, cause: str) -> None:
    rest: dict[str, Any] = {"compute_s": STEP_S - wait_s, "compute_worst_s": STEP_S - wait_s, "loader_s": wait_s}
    timed = Probes(replays=(Replay(10, 10 * STEP_S, 10 * cpu_s, 0.0, None, None, 0, None),))
    run = facts(facts=None, workers=0, real=None, device_step_s=None, wait_s=wait_s, probes=timed, **rest)
    assert set(found(run)) == ({cause} if cause else set())


def test_threads_that_spin_while_others_have_the_cores_do_not_hide_many_tiny_operations() -> None:
    """A step of 17 ms took 0.7 s of the processor, most of the time: what the quickest replay took is its work."""
    inspection = inspected(ops=2279, flops=9.5e6, moved_bytes=5e7)
    replays = tuple(Replay(4, 4 * s, 4 * s, 0.0, None, None, 0, None) for s in (0.7, 0.032, 0.83))
    spun = facts(device_step_s=None, main_cpu_s=0.7, probes=Probes(inspection=inspection, replays=replays))
    assert "launch-bound" in found(phases(spun, forward=0.05, backward=0.05))


@pytest.mark.parametrize(("calls", "place"), [(100, "train.py:9 step"), (1, None)])
def test_a_collection_that_the_script_asks_for_has_a_place(calls: int, place: str | None) -> None:
    run = phases(facts(device_step_s=None), forward=0.04, gc=0.06)
    run = named(run, phases=(*run.named.phases, Phase("gc", 9.0, 0.45)))
    asked = dataclasses.replace(run.track, collects=(Collect("train.py:9 step", calls), Collect("train.py:2 main", 1)))
    assert found(dataclasses.replace(run, track=asked))["gc-pause"].place == place


def test_workers_that_crowd_the_cores_slow_down_the_whole_loader_not_only_the_making() -> None:
    """A batch is made every 5 ms and comes every 23; as many workers as cores would be 1.75 times as fast."""
    crowd: dict[str, Any] = {"workers": 12, "facts": loader(num_workers=12), "device_step_s": None, "loader_s": 0.033}
    times: dict[str, Any] = {"step_s": 0.0143, "wall_step_s": 0.0235, "wait_s": 0.014, "compute_s": 0.005}
    run = facts(
        real=slow(5e-4), compute_worst_s=0.0054, probes=Probes(benches=rates(cores=0.02, as_is=0.035)), **crowd, **times
    )
    assert "too-many-workers" in found(run)


def after_steps(line: Line, *hot: HotLine, **changes: Any) -> Facts:
    """A loop that is at one line between each step and the next batch."""
    events = [(at * 100 * MS + 60 * MS, Kind.OPTIMIZER << 1 | 1) for at in range(100)]
    events += [(at * 100 * MS + 99 * MS, Kind.NEXT << 1) for at in range(100)]
    times, codes = zip(*sorted(events), strict=True)
    looks = tuple(at * 100 * MS + 80 * MS for at in range(100))
    busy = phases(facts(device_step_s=None, **changes), forward=0.05, other=0.05)
    columns: dict[str, Any] = {"times_ns": times, "codes": codes, "sample_times_ns": looks}
    track = dataclasses.replace(busy.track, **columns, sample_lines=(0,) * 100, lines=(line,))
    return named(
        dataclasses.replace(busy, track=track), hot_lines=hot, phases=(*busy.named.phases, Phase("other", 5.0, 0.25))
    )


def test_what_else_a_function_does_that_saves_is_no_logging() -> None:
    def run(function: str) -> Facts:
        hot = HotLine("train.py", 46, "save", 0.3, "checkpoint"), HotLine("train.py", 47, function, 0.3, "other")
        return after_steps(Line("train.py", 47, function, "os.replace"), *hot)

    assert "logging-stall" in found(run("plot"))
    assert "logging-stall" not in found(run("save"))


@pytest.mark.parametrize(("same_s", "epochs", "repeats"), [(0.9, 3, True), (0.2, 3, False), (0.9, 1, False)])
def test_work_that_chance_only_follows_is_repeated(same_s: float, epochs: int, *, repeats: bool) -> None:
    """A filter before a random shift, seen in a script of a stranger: no batch came out the same."""
    place = "train.py:32 remove_baseline"
    twice = worker(makings=(Making(4, 1.0, 0, None, None, (), same_s=same_s, same_place=place),))
    seen = dataclasses.replace(facts().seen, workers=(twice,))
    benches = {"fresh": same(4)["fresh"], "again": tuple(reversed(same(4)["again"]))}
    given = {"fresh": slow(6e-3), "again": slow(6e-3)}
    run = waiting(given, real=slow(6e-3), seen=seen, benches=benches, epochs=epochs)
    causes = [one.cause for one in order(list(found(run).values()), run)]
    assert ("repeated-work" in causes) == repeats
    assert causes[0] == ("repeated-work" if repeats else "decode-cpu")
    if repeats:
        assert found(run)["repeated-work"].place == place


@pytest.mark.parametrize(("threads", "then_s", "blamed"), [(8, 0.04, True), (8, 0.098, False), (None, 0.04, False)])
def test_a_model_with_more_threads_than_cores_is_held_against_one_with_as_many(
    threads: int | None, then_s: float, *, blamed: bool
) -> None:
    """Its main thread waits for a core most of the time: for its own threads, not for other programs."""

    def replays(step_s: float, queued_s: float) -> tuple[Replay, ...]:
        took = [step_s * (1 + 0.001 * i) for i in range(3)]
        return tuple(Replay(10, 10 * one, 10 * one - queued_s, queued_s, None, None, 0, None) for one in took)

    probes = Probes(replays=replays(0.1, 0.7), fewer=replays(then_s, 0.0), threads=threads)
    run = facts(device_step_s=None, probes=probes)
    assert ("thread-oversubscription" in found(run)) == blamed
    if blamed:
        assert found(run)["thread-oversubscription"].gain_max == pytest.approx(2.5, abs=0.02)
    assert others_share(probes) == 0.0


@pytest.mark.parametrize(("beside", "logs"), [("logging", True), ("other", False), ("backward", False)])
def test_operations_of_a_function_that_logs_and_does_not_train_are_logging(beside: Any, *, logs: bool) -> None:
    """Histograms of all weights for a file of its own, seen in a script of a stranger: a loop of operations."""
    loop = LineOps("train.py", 47, "note", 400, 400, 0, repeats=64)
    probes = Probes(inspection=dataclasses.replace(inspected(ops=500), lines=(loop,), places=("train.py:47",)))
    hot = [HotLine("train.py", 47, "note", 0.3, "other"), HotLine("train.py", 50, "note", 0.05, beside)]
    hot += [HotLine("train.py", 51, "note", 0.05, "logging")] * (beside == "backward")
    run = after_steps(Line("train.py", 47, "note", "train.note"), *hot, probes=probes, compute_s=0.1)
    assert ("logging-stall" in found(run)) == logs
    assert ("python-loop" in found(run)) == (not logs)


def test_code_of_the_scripts_own_on_a_batch_is_no_work_of_the_model() -> None:
    line = HotLine("train.py", 10, "augment", 0.8, "other")

    def run(cpu_s: float, *places: str) -> Facts:
        inspection = dataclasses.replace(inspected(ops=5), places=places)
        busy = facts(device_step_s=None, main_cpu_s=cpu_s, compute_s=0.1, probes=Probes(inspection=inspection))
        named = dataclasses.replace(busy.named, hot_lines=(line,), wall_s=0.1 * len(busy.named.steps))
        return phases(dataclasses.replace(busy, named=named), forward=0.01, backward=0.01, other=0.08)

    blamed = found(run(0.09))["decode-cpu"]
    assert blamed.place == "train.py:10 augment"
    assert blamed.gain_max is not None
    assert blamed.gain_max > 3
    assert "decode-cpu" not in found(run(0.01))  # it sleeps there
    assert "decode-cpu" not in found(run(0.09, "train.py:10"))  # it starts operations: a model without modules
