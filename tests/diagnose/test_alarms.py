from dataclasses import replace

import pytest

from stoker.diagnose import alarms as rules
from stoker.diagnose.alarms import CHECKS, MEANINGS, alarms, carry
from stoker.records import Alarm, Live, LiveMemory, LiveWorkers, Odd, Remaining

GIB = 1 << 30
MEMORY = LiveMemory(4 * GIB, 12 * GIB, 16 * GIB, None, None, 0, GIB)
HEALTHY = Live(
    run="a-run", command=("train.py",), started_s=0, state="training", exit_code=None, elapsed_s=100, steps=500,
    step_s=0.1, wait_share=0.02, phases=(), phase="forward", phase_s=0.01, idle_s=0.05, ranks=0, epochs=(),
    epochs_planned=None, remaining=Remaining(None, None),
    memory=MEMORY, processes=(), workers=LiveWorkers(4, 4, ()),
    device=None, graphs_lately=0, compile_share=0.0, odd=None, odd_ago_s=None, trouble=(), history=(),
)  # fmt: skip

# Just on the right side of each threshold, and just beyond it.
CASES = {
    "memory-low": (
        replace(HEALTHY, memory=replace(MEMORY, left_bytes=int(0.101 * 16 * GIB))),
        replace(HEALTHY, memory=replace(MEMORY, left_bytes=int(0.099 * 16 * GIB))),
    ),
    "shm-low": (
        replace(HEALTHY, memory=replace(MEMORY, shm_used_bytes=int(0.89 * GIB))),
        replace(HEALTHY, memory=replace(MEMORY, shm_used_bytes=int(0.91 * GIB))),
    ),
    "worker-died": (
        replace(HEALTHY, workers=LiveWorkers(3, 4, ())),
        replace(HEALTHY, workers=LiveWorkers(3, 4, (77,))),
    ),
    "stall": (replace(HEALTHY, idle_s=29.0), replace(HEALTHY, idle_s=31.0)),
    "recompiling": (replace(HEALTHY, graphs_lately=1), replace(HEALTHY, graphs_lately=2)),
    "loader-starving": (replace(HEALTHY, wait_share=0.29), replace(HEALTHY, wait_share=0.31)),
    "not-a-number": (
        replace(HEALTHY, odd=Odd(1, "nan", "train.py", 3), odd_ago_s=61.0),
        replace(HEALTHY, odd=Odd(1, "nan", "train.py", 3), odd_ago_s=59.0),
    ),
    "run-lost": (HEALTHY, replace(HEALTHY, state="lost")),
}


def test_a_healthy_run_raises_none() -> None:
    assert alarms(HEALTHY) == ()


@pytest.mark.parametrize("name", CASES)
def test_each_alarm_is_raised_beyond_its_threshold_and_not_before(name: str) -> None:
    below, beyond = CASES[name]
    assert alarms(below) == ()
    assert [alarm.name for alarm in alarms(beyond)] == [name]
    assert all(item.value is not None for alarm in alarms(beyond) for item in alarm.evidence)


def test_every_alarm_is_tried_and_has_a_meaning() -> None:
    assert set(CASES) == set(MEANINGS)
    assert len(CHECKS) == len(CASES)


def test_memory_that_will_be_full_soon_is_told_before_it_is_low() -> None:
    grows = replace(MEMORY, grows_bytes_per_s=32e6, full_in_s=400.0)
    assert [alarm.name for alarm in alarms(replace(HEALTHY, memory=grows))] == ["memory-low"]
    later = replace(MEMORY, grows_bytes_per_s=1e6, full_in_s=4000.0)
    assert alarms(replace(HEALTHY, memory=later)) == ()


def test_a_slow_step_is_no_stall() -> None:
    assert alarms(replace(HEALTHY, step_s=10.0, idle_s=190.0)) == ()
    assert [alarm.name for alarm in alarms(replace(HEALTHY, step_s=10.0, idle_s=210.0))] == ["stall"]


def test_a_worker_that_its_loader_missed_has_died_also_if_nobody_saw_it() -> None:
    said = "RuntimeError: DataLoader worker (pid(s) 42) exited unexpectedly"
    (alarm,) = alarms(replace(HEALTHY, trouble=("ValueError: bad row", said)))
    assert alarm.name == "worker-died"
    assert any(item.value == said for item in alarm.evidence)


def test_the_first_steps_may_wait() -> None:
    assert alarms(replace(HEALTHY, steps=rules.STARVING_STEPS - 1, wait_share=0.9)) == ()


def test_an_ended_run_raises_only_what_may_have_ended_it() -> None:
    raised = {alarm.name for _, beyond in CASES.values() for alarm in alarms(replace(beyond, state="ended"))}
    assert raised == {"worker-died", "not-a-number"}


def test_an_alarm_keeps_the_time_it_was_first_raised_and_is_kept_when_it_is_over() -> None:
    _, starving = CASES["loader-starving"]
    active, past = carry((), (), starving, alarms(starving))
    assert ([alarm.since_s for alarm in active], past) == ([100], ())
    later = replace(starving, elapsed_s=160)
    active, past = carry(active, past, later, alarms(later))
    assert ([alarm.since_s for alarm in active], past) == ([100], ())
    well = replace(HEALTHY, elapsed_s=200)
    active, past = carry(active, past, well, alarms(well))
    assert active == ()
    assert past == (Alarm("loader-starving", past[0].evidence, 100),)


def test_what_ended_a_run_is_told_once_however_soon_it_ended() -> None:
    died = replace(HEALTHY, state="ended", exit_code=1, workers=LiveWorkers(0, 0, (17,)))
    assert carry((), (), died, alarms(died)) == ((), alarms(died))
    seen = alarms(replace(died, state="training"))
    assert [alarm.name for alarm in seen] == ["worker-died"]
    assert carry(seen, (), died, alarms(died)) == ((), seen)
    assert carry((), seen, died, alarms(died)) == ((), seen)
