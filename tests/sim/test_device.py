import io
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stoker import sim
from stoker.errors import UsageError
from stoker.records import DeviceProfile, encode
from stoker.sim import device as device_module
from stoker.sim import timeline
from stoker.sim.timeline import SCHEDULER_LATE_S

STEP_S = 0.05
LONG_S = 1.0
"""Of work that must still be going on when it is looked at, however busy the machine is."""


def make_device(**costs: Any) -> Any:  # Any: torch's stubs do not know that x.to() takes it
    return sim.Device(**costs)


def make_loop(device: sim.Device) -> tuple[nn.Module, torch.optim.Optimizer, Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    device.place(model, optimizer)
    return model, optimizer, torch.randn(16, 4), torch.randint(0, 2, (16,))


def kinds(device: sim.Device) -> list[str]:
    return [span.kind for span in device.timeline.spans]


def test_a_plain_loop_computes_what_it_computes_on_the_cpu() -> None:
    def train(device: Any) -> list[float]:
        model, optimizer, x, y = make_loop(device or make_device())
        if device is None:  # same weights, but nothing placed
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(5):
            moved = (x, y) if device is None else (x.to(device), y.to(device))
            loss = nn.functional.cross_entropy(model(moved[0]), moved[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    losses = train(make_device(forward=0.001))
    assert losses == train(None)
    assert losses[-1] < losses[0]


def test_work_is_charged_in_the_order_of_the_loop_and_once_each() -> None:
    device = make_device(forward=0.01, backward=0.02, optimizer=0.005)
    model, optimizer, x, y = make_loop(device)
    criterion = device.place(nn.CrossEntropyLoss(), forward=0.001)
    criterion(model(x.to(device)), y.to(device)).backward()
    optimizer.step()
    assert kinds(device) == ["copy", "forward", "copy", "forward", "backward", "backward", "optimizer"]
    assert device.busy_s == pytest.approx(0.036, abs=2e-3)
    assert all(
        a.end_s <= b.start_s for a, b in zip(device.timeline.spans, list(device.timeline.spans)[1:], strict=False)
    )


def test_two_outputs_are_one_backward_and_no_grad_has_none() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"a": self.a(x), "b": self.b(x)}

    device = make_device(forward=0.001, backward=0.001)
    model = device.place(TwoHeads())
    out = model(torch.randn(3, 4).to(device))
    (out["a"].sum() + out["b"].sum()).backward()
    with torch.no_grad():
        model(torch.randn(3, 4).to(device))
    assert kinds(device).count("backward") == 1
    assert kinds(device).count("forward") == 2


def test_queueing_returns_at_once_and_reading_waits() -> None:
    device = make_device(forward=LONG_S)
    model, _, x, _ = make_loop(device)
    x = x.to(device, non_blocking=True)
    start = time.perf_counter()
    output = model(x)
    assert device.timeline.free_at_s > time.perf_counter()  # still at work
    output.sum().item()
    assert time.perf_counter() - start >= LONG_S


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.sum().item(),
        lambda t: t.cpu(),
        lambda t: t.to("cpu"),
        lambda t: t.tolist(),
        lambda t: t.detach().numpy(),
        lambda t: float(t.detach().sum()),
        lambda t: bool(t.sum() > 0),
        lambda t: f"{t.sum():.3f}",
        repr,
        lambda t: torch.equal(t, t),
        lambda t: torch.save(t, io.BytesIO()),
    ],
)
def test_every_way_to_read_a_value_waits(read: Any) -> None:
    device = make_device(forward=STEP_S)
    model, _, x, _ = make_loop(device)
    output = model(x.to(device))
    read(output)
    assert time.perf_counter() >= device.timeline.free_at_s


def test_a_blocking_copy_waits_for_what_is_queued_and_a_non_blocking_one_does_not() -> None:
    device = make_device(forward=LONG_S)
    model, _, x, _ = make_loop(device)
    model(x.to(device, non_blocking=True))
    x.to(device, non_blocking=True)
    assert time.perf_counter() < device.timeline.free_at_s
    x.to(device)
    assert time.perf_counter() >= device.timeline.free_at_s


def test_results_leave_the_device_as_plain_tensors() -> None:
    device = make_device()
    x = torch.ones(3).to(device)
    assert type(x.cpu()) is torch.Tensor
    assert type(x.to("cpu")) is torch.Tensor
    assert type(x + 1) is type(x)
    assert type(torch.zeros(2, device=device)) is type(x)
    assert x.to(device) is x
    assert x.to(device, torch.float16).dtype == torch.float16


def test_a_checkpoint_written_on_the_device_reads_back_without_stoker(tmp_path: Path) -> None:
    device = make_device()
    model, _, x, _ = make_loop(device)
    torch.save({"model": model.state_dict(), "last": model(x.to(device)).detach()}, tmp_path / "c.pt")
    code = f"import sys, torch; print(type(torch.load({str(tmp_path / 'c.pt')!r})['last']), 'stoker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("'")[1] == "torch.Tensor"
    assert done.stdout.strip().endswith("False")


def test_too_large_a_batch_raises_what_cuda_raises() -> None:
    device = make_device(memory_bytes=1 << 30, fixed_bytes=1 << 20, sample_bytes=1 << 20)
    model = device.place(nn.Linear(4, 2))
    model(torch.randn(1000, 4).to(device))
    assert device.memory_peak_bytes == 1001 << 20
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"out of memory\. Tried to allocate 1\.00 GiB"):
        model(torch.randn(1024, 4).to(device))


def test_a_batch_that_was_not_moved_is_refused_as_cuda_refuses_it() -> None:
    model = make_device().place(nn.Linear(4, 2))
    with pytest.raises(RuntimeError, match="same device"):
        model(torch.randn(2, 4))


def test_moving_a_module_says_how() -> None:
    with pytest.raises(UsageError, match=r"device\.place\(model, optimizer\)"):
        nn.Linear(1, 1).to(make_device())


def test_a_cost_can_follow_the_batch_size() -> None:
    device = make_device(forward=sim.linear(0.001, 0.0005))
    model = device.place(nn.Linear(4, 2))
    model(torch.randn(10, 4).to(device, non_blocking=True))
    assert device.timeline.spans[-1].end_s - device.timeline.spans[-1].start_s == pytest.approx(0.006)


def profile() -> DeviceProfile:
    return DeviceProfile("A100", 8, (0.001, 0.002), (0.003, 0.006), (0.0005, 0.001), 10e9)


def test_a_recorded_profile_replays_whole_steps(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(encode(profile())))
    device = make_device(**sim.replay(sim.load_profile(tmp_path / "p.json"), seed=1))
    model, optimizer, x, y = make_loop(device)  # batch of 16: twice the recorded one
    for _ in range(20):
        nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
    spans = [s for s in device.timeline.spans if s.kind != "copy"]
    lengths = [round(s.end_s - s.start_s, 6) for s in spans]
    steps = {tuple(lengths[i : i + 3]) for i in range(0, len(lengths), 3)}
    assert steps == {(0.002, 0.006, 0.0005), (0.004, 0.012, 0.001)}


def test_a_file_that_is_no_profile_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"device": "A100"}')
    with pytest.raises(UsageError, match=r"p\.json is no device profile: DeviceProfile lacks batch_size"):
        sim.load_profile(tmp_path / "p.json")
    with pytest.raises(UsageError, match="no device profile"):
        sim.load_profile(tmp_path / "absent.json")
    with pytest.raises(UsageError, match="holds no steps"):
        sim.replay(DeviceProfile("A100", 8, (), (), (), None))


def test_events_are_marked_now_and_read_later() -> None:
    began = time.perf_counter()
    device = make_device(forward=LONG_S)
    model, _, x, _ = make_loop(device)
    x = x.to(device)
    start, end = device.event(), device.event()
    with pytest.raises(RuntimeError, match="never recorded"):
        start.elapsed_time(end)
    start.record()
    model(x)
    end.record()
    queued_s = time.perf_counter() - began  # what the host takes, the device waits for, or makes good
    assert not end.query()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) == pytest.approx(LONG_S * 1e3, abs=queued_s * 1e3)


def test_waiting_for_the_device_burns_no_cpu() -> None:
    device = make_device(forward=0.5)
    model, _, x, _ = make_loop(device)
    output = model(x.to(device)).sum()
    before = time.thread_time()
    output.item()
    assert time.thread_time() - before < 0.05


class LateHost:
    """A clock, and a sleep that ends late, as on a busy machine; asking for the time takes some."""

    def __init__(self, late_s: list[float]) -> None:
        self.now_s = 0.0
        self._late_s = itertools.cycle(late_s)

    def perf_counter(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + next(self._late_s)


@given(late_s=st.lists(st.floats(0, 0.98 * SCHEDULER_LATE_S), min_size=1, max_size=20))
def test_steps_take_the_asked_time_within_two_percent_however_late_a_busy_machine_wakes_them(
    late_s: list[float],
) -> None:
    """The same on a real clock depends on the machine: benchmarks/sim.py prints it."""
    host, steps = LateHost(late_s), 100
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline, "time", host)
        patch.setattr(device_module, "time", host)
        device = make_device(forward=0.002, backward=0.002, optimizer=0.001, copy_s=0.0)
        model, optimizer, x, y = make_loop(device)
        began_s = host.now_s
        for _ in range(steps):
            moved = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(moved[0]), moved[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
    took_s = host.now_s - began_s - max(late_s)  # the last sleep may have ended as late as any
    assert 0.98 * 0.005 * steps - max(late_s) <= took_s <= 1.02 * 0.005 * steps


def test_a_copy_is_a_copy_also_where_somebody_else_has_wrapped_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.Tensor.to

    def timed(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", timed)
    device = sim.Device(forward=0.001)
    moved: Any = torch.ones(3).to(device, non_blocking=True)  # type: ignore[call-overload]
    assert type(moved).simulated is device
    assert moved.sum().item() == 3
