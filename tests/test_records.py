import json
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, is_dataclass
from importlib import import_module
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import records
from stoker.records import Diagnosis, LineOps, Noise, Phase, Trial, Tuning, decode, encode

STAGES = [import_module(f"stoker.records.{stage}") for stage in records.MODULES]
ALL = list(
    {kind: None for stage in STAGES for kind in vars(stage).values() if isinstance(kind, type) and is_dataclass(kind)}
)

finite = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(float, finite)


def few(kind: Any) -> st.SearchStrategy[Any]:
    """Two of a kind show as much as twenty, and an observation holds nearly all kinds of records."""
    kinds = get_args(kind)
    if kinds[1:] == (Ellipsis,):
        return st.lists(st.from_type(kinds[0]), max_size=2).map(tuple)
    return st.tuples(*map(st.from_type, kinds))


st.register_type_strategy(tuple, few)
st.register_type_strategy(Mapping, lambda kind: st.dictionaries(*map(st.from_type, get_args(kind)), max_size=2))


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=30)
@given(data=st.data())
def test_every_record_survives_json(kind: type, data: st.DataObject) -> None:
    record = data.draw(st.from_type(kind))
    text = json.dumps(encode(record), allow_nan=False)
    assert decode(kind, json.loads(text)) == record


@pytest.mark.parametrize("kind", ALL)
def test_every_record_is_frozen_and_says_what_it_is(kind: type) -> None:
    assert kind.__doc__
    assert not kind.__doc__.startswith(kind.__name__ + "(")  # dataclass's own filler
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        setattr(object.__new__(kind), "anything", 1)  # noqa: B010


def test_what_has_a_default_may_be_missing_from_an_older_record() -> None:
    line = LineOps("train.py", 7, "forward", 60, 50, 20)
    written = encode(line)
    assert decode(LineOps, {name: written[name] for name in written if name not in ("repeats", "entries")}) == line
    with pytest.raises(ValueError, match="LineOps lacks picks"):
        decode(LineOps, {name: written[name] for name in written if name != "picks"})


def test_a_wrong_field_is_named() -> None:
    with pytest.raises(ValueError, match=r"Noise\.ratio_low is 'x'; expected a number"):
        decode(Noise, {"ratio_low": "x", "ratio_high": 1})
    with pytest.raises(ValueError, match="Noise lacks ratio_high"):
        decode(Noise, {"ratio_low": 1})
    with pytest.raises(ValueError, match=r"Phase\.name is 'lunch'; expected one of startup"):
        decode(Phase, {"name": "lunch", "seconds": 1, "share": 1})
    with pytest.raises(ValueError, match=r"Noise\.ratio_low is True; expected a number"):
        decode(Noise, {"ratio_low": True, "ratio_high": 1})


DOCTOR_KEYS = {
    *("wall_s", "steps", "epochs", "steps_per_epoch", "samples_per_s", "startup_s", "first_batch_s", "steady_step_s"),
    *("mean_step_s", "phases", "unaccounted_share", "hot_lines", "ceilings", "prediction", "workers", "memory"),
    *("device", "findings", "verdict", "overhead_share"),
}
TRIAL_KEYS = {
    *("knob", "from", "to", "hypothesis", "predicted_ratio", "ratio", "ci_low", "ci_high", "decision", "reason"),
    *("host_peak_bytes", "device_peak_bytes", "changes_results"),
}


@settings(max_examples=20)
@given(record=st.from_type(Diagnosis))
def test_the_doctors_json_has_the_keys_of_the_contract(record: Diagnosis) -> None:
    assert set(encode(record)) >= DOCTOR_KEYS


@given(record=st.from_type(Tuning), trial=st.from_type(Trial))
def test_the_tuners_json_has_the_keys_of_the_contract(record: Tuning, trial: Trial) -> None:
    assert set(encode(record)) >= {"reference", "noise", "trials", "final", "goal", "files"}
    assert set(encode(trial)) >= TRIAL_KEYS
