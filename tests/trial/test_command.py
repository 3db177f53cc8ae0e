from pathlib import Path

import pytest

from stoker.commands.tune.request import wishes
from stoker.errors import UsageError
from stoker.trial.command import Command


def test_a_placeholder_is_filled_and_doubled_braces_are_braces(tmp_path: Path) -> None:
    command = Command(["python", "train.py", "--batch={batch}", "{{keep}}", '{"a": 1}'])
    assert command.placeholders == {"batch"}
    ready = command.with_knobs({"batch": 64, "num_workers": 2}, tmp_path)
    assert ready.words == ("python", "train.py", "--batch=64", "{keep}", '{"a": 1}')
    assert ready.attached == {"num_workers": 2}


def test_a_placeholder_that_no_knob_fills_is_refused(tmp_path: Path) -> None:
    command = Command(["python", "train.py", "{lr}"])
    with pytest.raises(UsageError, match=r"no knob fills \{lr\}; write --knob lr=VALUE,VALUE"):
        wishes(command, [], keep_results=False)
    with pytest.raises(UsageError, match=r"no knob fills \{lr\}"):
        command.with_knobs({}, tmp_path)


def test_the_first_value_of_a_placeholder_is_the_reference() -> None:
    command = Command(["python", "train.py", "--batch-size", "{batch_size}"])
    found = wishes(command, ["batch_size=32,64", "num_workers=0,2"], keep_results=False)
    assert found.start == {"batch_size": 32}
    assert found.asked == ({"batch_size": 64}, {"num_workers": 0}, {"num_workers": 2})


def test_the_reference_of_a_placeholder_stays_when_it_is_named_twice() -> None:
    found = wishes(Command(["python", "--n={n}"]), ["n=1,2", "n=3,1"], keep_results=False)
    assert found.start == {"n": 1}
    assert found.asked == ({"n": 2}, {"n": 3})


def test_a_placeholder_named_like_a_knob_has_its_legal_values() -> None:
    command = Command(["python", "train.py", "{num_workers}"])
    with pytest.raises(UsageError, match="num_workers is -1; expected 0 or more"):
        wishes(command, ["num_workers=-1"], keep_results=False)


def test_a_changed_copy_of_the_config_reaches_the_command(tmp_path: Path) -> None:
    config, place = tmp_path / "exp.yaml", tmp_path / "scratch"
    config.write_text("train:\n  batch_size: 8  # small\n")
    place.mkdir()
    for words in (["train", str(config)], ["train", f"--config={config}"]):
        ready = Command(words, config).with_knobs({"train.batch_size": 16}, place)
        copy = Path(ready.words[-1].rpartition("=")[2])
        assert copy.parent == place
        assert copy.read_text() == "train:\n  batch_size: 16  # small\n"
        assert ready.attached == {}
    assert config.read_text() == "train:\n  batch_size: 8  # small\n"
    assert Command(["train", str(config)], config).with_knobs({}, place).words == ("train", str(config))


def test_a_config_that_the_command_does_not_mention_is_refused(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text("a: 1\n")
    with pytest.raises(UsageError, match=r"the command does not mention .*exp\.yaml"):
        Command(["train", "other.yaml"], tmp_path / "exp.yaml")


def test_an_unknown_name_is_answered_with_the_nearest_of_all_places(tmp_path: Path) -> None:
    config = tmp_path / "exp.yaml"
    config.write_text("train:\n  batch_size: 8\n  lr: 0.1\n")
    command = Command(["train", str(config), "{depth}"], config)
    nearest = {"train.batchsize": "train.batch_size", "dept": "depth", "num_worker": "num_workers", "lr": "train.lr"}
    for name, near in nearest.items():
        with pytest.raises(UsageError, match=f"no knob is called {name}; did you mean {near}"):
            command.parse(name, "1")


def test_who_knows_only_a_name_must_believe_that_results_change(tmp_path: Path) -> None:
    config = tmp_path / "exp.json"
    config.write_text('{"data": {"num_workers": 2}, "depth": 3}')
    command = Command(["train", str(config)], config)
    assert not command.changes_results("data.num_workers")
    assert command.changes_results("depth")
    assert command.changes_results("batch_size")
    with pytest.raises(UsageError, match="depth can change what is trained"):
        wishes(command, ["depth=4"], keep_results=True)


def test_a_search_for_the_batch_size_is_no_value() -> None:
    found = wishes(Command(["train"]), ["batch_size=auto"], keep_results=False)
    assert (found.search, found.asked) == (("batch_size",), ())
    with pytest.raises(UsageError, match="batch_size can change what is trained"):
        wishes(Command(["train"]), ["batch_size=auto"], keep_results=True)


def test_what_may_not_change_results_is_looked_at_knob_by_knob() -> None:
    command = Command(["python", "train.py", "{batch_size}"])
    for texts in (["num_workers=2", "batch_size=8"], ["batch_size=8", "num_workers=2"]):
        assert wishes(command, texts, keep_results=True).asked == ({"num_workers": 2},)
    with pytest.raises(UsageError, match="batch_size can change what is trained"):
        wishes(command, ["batch_size=8,16"], keep_results=True)


def test_a_search_begins_at_the_size_that_a_placeholder_is_given() -> None:
    command = Command(["python", "train.py", "{batch_size}"])
    found = wishes(command, ["batch_size=8,auto"], keep_results=False)
    assert (found.start, found.search, found.asked) == ({"batch_size": 8}, ("batch_size",), ())
    with pytest.raises(UsageError, match="write --knob batch_size=32,auto"):
        wishes(command, ["batch_size=auto"], keep_results=False)


def test_a_key_that_cannot_be_changed_by_itself_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("base: &b\n  size: 3\ntrain:\n  <<: *b\n")
    command = Command(["python", "train.py", str(path)], path)
    with pytest.raises(UsageError, match=r"train\.size in .* cannot be changed by itself"):
        wishes(command, ["train.size=4"], keep_results=False)
