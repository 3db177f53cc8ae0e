import dataclasses
import os

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import UnsafeError
from stoker.records import Limits
from stoker.trial import device, limits
from stoker.trial.protocol import Usage
from stoker.trial.shm import Segments
from stoker.trial.tree import Tree
from stoker.trial.watch import Watch, exceeded

MIB = 1 << 20
sizes = st.integers(0, 2**50)


@given(predicted=sizes, allowed=st.integers(1, 2**50))
def test_a_trial_is_refused_exactly_if_it_is_predicted_to_take_more_than_allowed(predicted: int, allowed: int) -> None:
    why = limits.refusal(Limits(allowed), host_bytes=predicted)
    assert (why is not None) == (predicted > allowed)
    assert why is None or ("RAM" in why and "not started" in why)


def test_the_refusal_names_what_would_not_fit() -> None:
    allowed = Limits(1000 * MIB, shm_bytes=10 * MIB, device_bytes=20 * MIB)
    assert "/dev/shm" in (limits.refusal(allowed, shm_bytes=11 * MIB) or "")
    assert "device memory" in (limits.refusal(allowed, device_bytes=21 * MIB) or "")
    assert limits.refusal(allowed) is None
    assert limits.refusal(Limits(1), shm_bytes=5, device_bytes=5) is None


def test_by_default_four_fifths_of_what_is_free_are_allowed() -> None:
    chosen = limits.choose(seconds=3)
    assert 0 < chosen.host_bytes <= 0.8 * psutil.virtual_memory().total
    assert chosen.host_bytes == pytest.approx(0.8 * limits.free_bytes(), rel=0.2)  # others take and give meanwhile
    assert chosen.shm_bytes is None or chosen.shm_bytes <= chosen.host_bytes
    assert chosen.seconds == 3


def test_the_user_can_allow_less_but_not_more_than_there_is() -> None:
    assert limits.choose(100 * MIB).host_bytes == 100 * MIB
    with pytest.raises(UnsafeError, match=r"--max-ram allows 1024\.0 TiB, but .* are free now"):
        limits.choose(2**50)


def test_a_trial_is_ended_when_the_machine_runs_short_whoever_took_it() -> None:
    watch = Watch(Tree(os.getpid()), Limits(2**50), group=None, segments=Segments(), devices=device.Meter(None))
    assert watch.excess(watch.look()) is None
    watch._reserve_bytes = 2**50
    found = watch.excess(watch.look())
    watch.close()
    assert found is not None
    assert found[0] == "ram"
    assert "of the machine's RAM were left" in found[1]


@given(
    usage=st.builds(Usage, st.floats(0, 100), sizes, st.none() | sizes, st.none() | sizes, st.integers(0, 1000)),
    allowed=st.builds(
        Limits,
        sizes,
        st.none() | sizes,
        st.none() | sizes,
        st.none() | st.floats(0, 100),
        st.none() | st.integers(0, 99),
    ),
)
def test_a_limit_is_passed_exactly_if_something_is_above_it(usage: Usage, allowed: Limits) -> None:
    pairs = zip(
        dataclasses.astuple(usage), [allowed.seconds, *dataclasses.astuple(allowed)[:3], allowed.processes], strict=True
    )
    above = [used is not None and limit is not None and used > limit for used, limit in pairs]
    assert (exceeded(usage, allowed) is not None) == any(above)


def test_device_memory_of_the_tree_is_summed_and_of_others_is_not() -> None:
    now = [0.0]
    running = [(1, 5), (2, 7), (9, 100)]
    meter = device.Meter(lambda: running, clock=lambda: now[0])
    assert meter.read({1, 2}) == 12
    running.append((1, 50))
    assert meter.read({1, 2}) == 12  # the driver is asked twice a second
    now[0] += device.EVERY_S
    assert meter.read({1, 2}) == 62
    running.clear()
    now[0] += device.EVERY_S
    assert meter.read({1, 2}) == 0


def test_device_memory_that_nobody_can_see_is_none() -> None:
    assert device.Meter(None).read({1}) is None
    assert device.Meter(lambda: [(9, 100)]).read({1}) is None


def test_device_memory_above_its_limit_ends_the_trial() -> None:
    found = exceeded(Usage(1.0, 5, 0, 30 * MIB, 1), Limits(100, device_bytes=20 * MIB))
    assert found == ("device", "it took 30.0 MiB of device memory, 20.0 MiB allowed")
