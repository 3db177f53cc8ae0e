import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import UsageError
from stoker.trial.configfile import ConfigFile

YAML = """\
# an experiment
train:
  batch_size: 32   # per device
  lr: 0.1
  epochs: 32
  precision: fp32
  compile: false
model: {width: 64, layers: [32, 64]}
"""


def config(tmp_path: Path, text: str, name: str = "exp.yaml") -> ConfigFile:
    (tmp_path / name).write_text(text)
    return ConfigFile(tmp_path / name)


def test_only_the_value_itself_is_changed_in_yaml(tmp_path: Path) -> None:
    changed = config(tmp_path, YAML).changed({"train.batch_size": 64})
    assert changed == YAML.replace("batch_size: 32", "batch_size: 64")
    assert (tmp_path / "exp.yaml").read_text() == YAML


def test_the_same_value_elsewhere_stays(tmp_path: Path) -> None:
    opened = config(tmp_path, YAML)
    assert opened.changed({"train.epochs": 8}) == YAML.replace("epochs: 32", "epochs: 8")
    assert opened.changed({"model.layers.0": 16}) == YAML.replace("[32, 64]", "[16, 64]")
    assert opened.changed({"train.precision": "bf16", "train.compile": True}) == YAML.replace("fp32", "bf16").replace(
        "false", "true"
    )


def test_json_and_toml_keep_their_looks(tmp_path: Path) -> None:
    text = '{\n    "train": {"batch_size": 32, "name": "32"},\n    "seed": 32\n}\n'
    assert config(tmp_path, text, "a.json").changed({"seed": 1}) == text.replace('"seed": 32', '"seed": 1')
    text = '[train]\nbatch_size = 32  # small\nlr = 1e-3\nname = "32"\n'
    opened = config(tmp_path, text, "a.toml")
    assert opened.changed({"train.lr": 0.01}) == text.replace("1e-3", "0.01")
    assert opened.changed({"train.name": "x"}) == text.replace('"32"', '"x"')


def test_what_the_user_types_is_read_as_the_file_would(tmp_path: Path) -> None:
    opened = config(tmp_path, YAML)
    assert opened.parse_value("train.batch_size", "64") == 64
    assert opened.parse_value("train.lr", "1") == 1.0
    assert opened.parse_value("train.precision", "16") == "16"
    assert opened.parse_value("train.compile", "true") is True
    for key, typed, says in [
        ("train.batch_size", "many", "many; it is 32 in .*, so a number is expected"),
        ("train.batch_size", "true", "true; it is 32 in .*, so a number is expected"),
        ("train.lr", "nan", "nan; it is 0.1 in .*, so a number is expected"),
        ("train.compile", "3", "3; it is False in .*, so true or false is expected"),
    ]:
        with pytest.raises(UsageError, match=f"{key} is {says}"):
            opened.parse_value(key, typed)


@pytest.mark.parametrize("name", ["a.yaml", "a.json", "a.toml"])
@pytest.mark.parametrize("typed", ["1e-5", "0.00001", "1.0e-5", "1e22"])
def test_a_very_small_or_large_number_stays_a_number(tmp_path: Path, name: str, typed: str) -> None:
    text = {"a.yaml": "lr: 1.0e-3\n", "a.json": '{"lr": 1e-3}', "a.toml": "lr = 1e-3\n"}[name]
    opened = config(tmp_path, text, name)
    value = opened.parse_value("lr", typed)
    assert value == float(typed)
    assert config(tmp_path, opened.changed({"lr": value}), f"changed-{name}").values == {"lr": value}


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("a: [1", "x.yaml", "cannot be read"),
        ("{", "x.json", "cannot be read"),
        ("a = ", "x.toml", "cannot be read"),
        ("a", "x.ini", "is of no known kind; expected .yaml, .yml, .json, .toml"),
    ],
)
def test_a_file_that_cannot_be_read_is_said_in_one_line(tmp_path: Path, text: str, name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        config(tmp_path, text, name)
    assert "\n" not in str(caught.value)


def test_a_tag_without_a_value_is_no_crash(tmp_path: Path) -> None:
    for tag in ("int", "float", "timestamp"):
        with pytest.raises(UsageError, match="cannot be read"):
            config(tmp_path, f"a: !!{tag}")
    assert config(tmp_path, "a: !!int 3\nb: !!float 1.5\n").changed({"b": 2.5}) == "a: !!int 3\nb: !!float 2.5\n"


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        ConfigFile(tmp_path / "none.yaml")


def test_a_value_shared_by_an_alias_is_refused(tmp_path: Path) -> None:
    opened = config(tmp_path, "a: &x 5\nb: *x\n")
    with pytest.raises(UsageError, match="cannot be changed by itself"):
        opened.changed({"a": 6})


@pytest.mark.parametrize("name", ["a.yaml", "a.json", "a.toml"])
def test_a_file_of_windows_keeps_the_ends_of_its_lines(tmp_path: Path, name: str) -> None:
    text = {
        "a.yaml": "# c\r\na: 5\r\nb: x y\r\n",
        "a.json": '{\r\n"a": 5,\r\n"b": "x y"}',
        "a.toml": 'a = 5\r\nb = "x y"\r\n',
    }[name]
    (tmp_path / name).write_bytes(text.encode())
    changed = ConfigFile(tmp_path / name).changed({"a": 6, "b": "z z"})
    assert changed == text.replace("5", "6").replace("x y", "z z")


scalars = st.one_of(st.integers(0, 9), st.booleans(), st.sampled_from(["a", "b c", "1", "true", "x: y", "#z", ""]))
names = st.sampled_from(["a", "b", "c"])
tables = st.dictionaries(names, st.one_of(scalars, st.dictionaries(names, scalars, min_size=1)), min_size=1)


@given(table=tables, value=scalars, data=st.data(), kind=st.sampled_from(["json", "yaml", "toml"]))
def test_whatever_the_file_one_key_changes_and_nothing_else(
    table: dict[str, Any], value: Any, data: st.DataObject, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = {"json": json.dumps, "yaml": yaml.safe_dump, "toml": _toml}[kind](table)
    opened = config(tmp_path_factory.mktemp("config"), text, f"x.{kind}")
    assert opened.values == _flat(table)
    key = data.draw(st.sampled_from(sorted(opened.values)))
    changed = opened.changed({key: value})
    parsed = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}[kind](changed)
    wanted = {**_flat(table), key: value}
    assert _flat(parsed) == wanted
    assert {k: type(v) for k, v in _flat(parsed).items()} == {k: type(v) for k, v in wanted.items()}


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    return found


def _toml(table: dict[str, Any]) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items() if not isinstance(value, dict)]
    for name, inner in table.items():
        if isinstance(inner, dict):
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in inner.items())]
    return "\n".join(lines) + "\n"


def test_a_key_with_a_dot_in_its_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("train.size: 3\n")
    with pytest.raises(UsageError, match="has a dot in its name"):
        ConfigFile(path).changed({"train.size": 4})
