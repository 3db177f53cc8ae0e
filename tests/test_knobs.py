import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker.errors import UsageError
from stoker.knobs import KNOBS, Knob, OneOf, Switch, Whole, find

DATA = TensorDataset(torch.arange(12.0))


def target(knob: Knob) -> Any:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(1, 3, 5, 5))
    return {
        "loader": {"num_workers": 1, "batch_size": 2},
        "process": None,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }[knob.scope]


def legal(knob: Knob) -> st.SearchStrategy[Any]:
    match knob.values:
        case Whole(low):
            return st.integers(low, 64)
        case OneOf(words):
            return st.sampled_from(words)
        case Switch():
            return st.booleans()


def look(knob: Knob, thing: Any) -> Any:
    """All of a target that a knob could have touched."""
    if knob.scope == "loader":
        return dict(thing)
    if knob.scope == "model":
        tensors = {name: (p.tolist(), p.stride()) for name, p in thing.named_parameters()}
        hooks = len(thing._forward_pre_hooks), len(thing._forward_hooks)
        return tensors, hooks, thing.__dict__.get("forward"), thing._compiled_call_impl
    if knob.scope == "optimizer":
        return thing.__dict__.get("step"), thing.__dict__.get("zero_grad")
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark


@pytest.mark.parametrize("knob", KNOBS.values(), ids=KNOBS.keys())
@given(data=st.data())
def test_a_knob_reads_back_what_was_applied_and_undoes_all_of_it(knob: Knob, data: st.DataObject) -> None:
    thing = target(knob)
    before, looked = knob.read(thing), look(knob, thing)
    first, second = data.draw(legal(knob)), data.draw(legal(knob))
    undo_first = knob.apply(thing, first)
    assert knob.read(thing) == first
    undo_second = knob.apply(thing, second)
    assert knob.read(thing) == second
    undo_second()
    assert knob.read(thing) == first
    undo_first()
    assert knob.read(thing) == before
    assert look(knob, thing) == looked


@pytest.mark.parametrize("knob", KNOBS.values(), ids=KNOBS.keys())
def test_a_knob_says_what_it_is_and_refuses_what_it_cannot_be(knob: Knob) -> None:
    assert knob.meaning
    with pytest.raises(UsageError, match=rf"{knob.name} is nonsense; expected .*\. Leave it out"):
        knob.parse("nonsense")


@pytest.mark.parametrize("knob", KNOBS.values(), ids=KNOBS.keys())
@given(data=st.data())
def test_a_legal_value_can_be_typed(knob: Knob, data: st.DataObject) -> None:
    value = data.draw(legal(knob))
    assert knob.parse(f" {str(value).lower()} ") == value


def test_an_unknown_knob_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="no knob is called num_worker; did you mean num_workers"):
        find("num_worker")
    with pytest.raises(UsageError, match="known knobs: num_workers, prefetch_factor"):
        find("zzz")


@pytest.mark.parametrize("knob", [k for k in KNOBS.values() if k.scope == "loader"], ids=lambda knob: knob.name)
def test_torch_takes_the_arguments_that_loader_knobs_leave(knob: Knob) -> None:
    arguments = {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": True, "multiprocessing_context": "fork"}
    match knob.values:
        case Whole(low):
            knob.apply(arguments, low)
        case OneOf(words):
            knob.apply(arguments, words[0])
        case Switch():
            knob.apply(arguments, True)
    DataLoader(DATA, **arguments)  # type: ignore[arg-type]


def test_what_needs_workers_says_so() -> None:
    with pytest.raises(UsageError, match="prefetch_factor is 4, but num_workers is 0; it needs at least one worker"):
        KNOBS["prefetch_factor"].apply({"num_workers": 0}, 4)
    with pytest.raises(UsageError, match="batch_sampler decides it"):
        KNOBS["batch_size"].apply({"batch_sampler": object()}, 4)


def user_init(worker: int) -> None:
    torch.manual_seed(worker)


def test_worker_threads_reach_the_worker_and_keep_the_users_own_init() -> None:
    arguments: dict[str, Any] = {"worker_init_fn": user_init}
    KNOBS["worker_threads"].apply(arguments, 3)
    init = pickle.loads(pickle.dumps(arguments["worker_init_fn"]))
    threads = torch.get_num_threads()
    try:
        init(5)
        assert torch.get_num_threads() == 3
        assert torch.initial_seed() == 5
    finally:
        torch.set_num_threads(threads)


def test_amp_runs_the_matmuls_in_the_precision_asked_for() -> None:
    model = nn.Linear(4, 4)
    undo = KNOBS["amp"].apply(model, "bf16")
    assert model(torch.randn(2, 4)).dtype == torch.bfloat16
    KNOBS["amp"].apply(model, "off")()
    assert model(torch.randn(2, 4)).dtype == torch.bfloat16
    undo()
    assert model(torch.randn(2, 4)).dtype == torch.float32


def test_channels_last_reaches_parameters_and_inputs_and_keeps_what_was_trained_meanwhile() -> None:
    conv = nn.Conv2d(3, 4, 3)
    plain = conv.weight.stride()
    undo = KNOBS["channels_last"].apply(conv, True)
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert conv(torch.randn(2, 3, 8, 8)).is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        conv.weight.add_(1)
    trained = conv.weight.clone()
    undo()
    assert conv.weight.stride() == plain
    assert torch.equal(conv.weight, trained)


def test_accumulation_steps_on_the_mean_of_the_batches() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 3), torch.randn(8, 1)

    def train(accumulation: int) -> torch.Tensor:
        torch.manual_seed(1)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        KNOBS["accumulation"].apply(optimizer, accumulation)
        for part in torch.arange(8).chunk(accumulation):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[part]), y[part]).backward()
            optimizer.step()
        return model.weight.detach()

    assert torch.allclose(train(1), train(4), atol=1e-6)
