"""What others do on the same machine must not be taken for the run's own slowness."""

import dataclasses

from diagnose.runs import facts
from stoker.diagnose.gather import _calm, _undisturbed_s, others_share
from stoker.records import Probes, Replay, Stretch
from stoker.report.findings import headline


def replay(seconds: float, queued_s: float) -> Replay:
    return Replay(10, seconds, 1.0, queued_s, None, None, 0, None)


def test_replays_that_others_disturbed_do_not_count_if_there_are_calmer_ones() -> None:
    quiet, busy = replay(1.0, 0.01), replay(3.0, 1.5)
    assert _calm([quiet, busy]) == [quiet]
    assert _calm([busy, busy]) == [busy, busy]


def test_real_steps_are_taken_from_when_the_cores_were_free() -> None:
    free, busy = Stretch(80, 0.8, 0.0), Stretch(1000, 30.0, 10.0)
    assert _undisturbed_s(Probes(stretches=(free, busy))) == 0.01
    assert _undisturbed_s(Probes(stretches=(busy, busy))) is None  # it was never calmer
    assert _undisturbed_s(Probes(stretches=(Stretch(5, 0.05, 0.0), busy))) is None  # too short to tell
    assert _undisturbed_s(Probes()) is None


def test_what_other_programs_took_is_that_of_the_calmest_replay() -> None:
    assert others_share(Probes(replays=(replay(1.0, 0.01), replay(3.0, 1.5)))) == 0.01
    assert others_share(Probes(replays=(replay(4.0, 3.0), replay(3.0, 2.5)))) == 0.75
    assert others_share(Probes()) is None


def test_a_report_from_crowded_cores_says_so() -> None:
    said = facts().said
    crowded, quiet = (dict(headline(dataclasses.replace(said, others_share=share))) for share in (0.75, 0.05))
    assert "75" in crowded["caution"]
    assert "caution" not in quiet


def test_a_host_that_gives_the_cores_to_others_is_told() -> None:
    said = facts().said
    robbed, left_alone = (
        dict(headline(dataclasses.replace(said, machine=dataclasses.replace(said.machine, stolen_share=share))))
        for share in (0.13, 0.01)
    )
    assert "13" in robbed["caution"]
    assert "caution" not in left_alone
