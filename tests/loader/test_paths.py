"""Paths: what was opened is found again, whatever the working directory becomes, and is named as it was written."""

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from loader import scans, sources, texts
from stoker import errors
from stoker.loader.front import Loader
from stoker.loader.source import paths
from stoker.loader.source.interface import Ragged, Source

Write = Callable[[Path, Sequence[int]], Any]

KINDS: dict[str, tuple[Write, dict[str, Any]]] = {
    "npy": (sources.npy, {}),
    "parquet": (sources.parquet, {}),
    "images": (sources.pictures, {"size": sources.SIDE}),
    "cached images": (sources.pictures, {"size": sources.SIDE, "cache": "cache"}),
    "tiff": (scans.tiff, {"patch": scans.PATCH, "labels": "data/lab", "foreground": 0.5, "cache": "cache"}),
    "zarr": (scans.zarr, {"patch": scans.PATCH, "labels": "data/lab", "foreground": 0.5, "cache": "cache"}),
}


def epoch(source: Source) -> list[dict[str, Any]]:
    with Loader(source, 3, True) as loader:
        return [{name: _plain(value) for name, value in batch.items()} for batch in loader]


def _plain(value: Any) -> Any:
    if isinstance(value, Ragged):
        return [part.tolist() for part in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("kind", KINDS)
def test_a_relative_path_stays_what_it_was_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    write, how = KINDS[kind]
    write(tmp_path / "data", [5, 4])
    (tmp_path / "elsewhere").mkdir()
    given = "data/vol" if "patch" in how else "data"
    monkeypatch.chdir(tmp_path)
    there = stoker.open(tmp_path / given, **how)
    expected, states = epoch(there), [Loader(there, 3).state_dict()]
    source = stoker.open(given, **how)
    monkeypatch.chdir("elsewhere")
    again = pickle.loads(pickle.dumps(source))
    assert epoch(source) == epoch(again) == expected
    assert all(Loader(one, 3).state_dict() in states for one in (source, again))
    assert not list(Path().iterdir())


def test_a_state_does_not_tell_where_the_data_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for write, how in KINDS.values():
        folder = Path(str(len(list(tmp_path.iterdir()))))
        write(tmp_path / folder / "data", [5, 4])
        monkeypatch.chdir(tmp_path / folder)
        state = Loader(stoker.open("data/vol" if "patch" in how else "data", **how), 3).state_dict()
        assert str(tmp_path) not in json.dumps(state)


def test_what_cannot_be_opened_is_named_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    scans.write_tiff(tmp_path / "vol" / "1.tif", np.ones((4, 4, 4), np.uint8))
    scans.write_tiff(tmp_path / "lab" / "2.tif", np.ones((4, 4, 4), np.uint8))
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("none.npy", {}, "^none.npy does not exist"),
        ("*.npy", {}, r"^no file matches \*\.npy"),
        ("photos", {"size": 8}, "^no image is below photos;"),
        ("vol/1.tif", {}, r"^vol/1\.tif needs patch="),
        ("vol", {"patch": (4, 4, 4), "labels": "lab"}, r"^vol/1\.tif may go with lab/2\.tif"),
    ]
    for path, how, says in wrong:
        with pytest.raises(errors.UsageError, match=says):
            stoker.open(path, **how)


def test_files_come_in_the_order_of_their_names_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved state counts on it."""
    for name in ("z/first.npy", "a/second.npy"):
        (tmp_path / name).parent.mkdir()
        np.save(tmp_path / name, np.arange(3))
    monkeypatch.chdir(tmp_path)
    source = stoker.open(["a/second.npy", tmp_path / "z" / "first.npy"])
    assert [Path(path).name for path in source.paths()] == ["first.npy", "second.npy"]


@pytest.mark.parametrize("how", [{"size": 8}, {"patch": (4, 4, 4)}, {"length": 4}])
def test_columns_are_refused_where_there_is_no_choice(tmp_path: Path, how: dict[str, Any]) -> None:
    (tmp_path / "1.png").write_bytes(sources.png(1))
    with pytest.raises(errors.UsageError, match=r"columns=? is (no option here|not an argument for images)"):
        stoker.open(tmp_path, columns=["x"], **how)


@pytest.mark.parametrize("kind", ["npy", "parquet", "images", "tiff"])
def test_what_is_no_way_to_treat_errors_is_refused(tmp_path: Path, kind: str) -> None:
    write, how = KINDS[kind]
    write(tmp_path / "data", [5])
    with pytest.raises(errors.UsageError, match="on_error is 'skipp'; expected 'raise' or 'skip'"):
        stoker.open(tmp_path / "data", on_error="skipp", **how)  # type: ignore[arg-type]


def _texts(folder: Path, sizes: Sequence[int]) -> None:
    folder.mkdir()
    for number, rows in enumerate(sizes):
        texts.write(folder / f"{number:03}.jsonl", [texts.words(row) for row in range(rows)])


def _scans(write: Write) -> Write:
    """Only the volumes, without their labels."""

    def volumes(folder: Path, sizes: Sequence[int]) -> None:
        write(folder.with_name("scans"), sizes)
        (folder.with_name("scans") / "vol").rename(folder)

    return volumes


LINKS: dict[str, tuple[Write, str, dict[str, Any]]] = {
    "npy": (sources.npy, "zzz.npy", {}),
    "parquet": (sources.parquet, "zzz.parquet", {}),
    "images": (sources.pictures, "c001/zzz.png", {"size": sources.SIDE}),
    "cached images": (sources.pictures, "c001/zzz.png", {"size": sources.SIDE, "cache": "cache"}),
    "tiff": (_scans(scans.tiff), "zzz.tif", {"patch": scans.PATCH, "sampling": "grid"}),
    "zarr": (_scans(scans.zarr), "zzz.zarr", {"patch": scans.PATCH, "sampling": "grid"}),
    "text": (_texts, "zzz.jsonl", {"length": 9, "tokenizer": "tokenizer0.json", "cache": "cache"}),
}


@pytest.mark.parametrize("kind", LINKS)
def test_a_link_to_a_file_that_was_not_fetched_is_named_or_listed_and_never_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    write, name, how = LINKS[kind]
    texts.tokenizer(tmp_path)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "data", [5, 4])
    whole = len(stoker.open("data", **how))
    (tmp_path / "data" / name).symlink_to("/annex/objects/zzz")
    how = how | ({"relist": True} if kind == "cached images" else {})
    globs = [] if "images" in kind else [f"data/*{Path(name).suffix}"]
    for path in ["data", *globs]:
        says = rf"{name}: is a link to /annex/objects/zzz, which is not there; fetch it"
        with pytest.raises(errors.VanishedError, match=says):
            stoker.open(path, **how)
        source = stoker.open(path, on_error="skip", **how)
        for one in (source, pickle.loads(pickle.dumps(source))):
            assert (len(one), [Path(left.path).name for left in one.skipped]) == (whole, [Path(name).name])
            assert "is a link to /annex/objects/zzz" in one.skipped[0].reason


def test_images_that_a_table_does_not_name_need_not_be_fetched(tmp_path: Path) -> None:
    sources.pictures(tmp_path, [3])
    (tmp_path / "c000" / "zzz.png").symlink_to("/annex/objects/zzz")
    assert len(stoker.open(tmp_path, size=8, labels={"c000/00000.png": 1})) == 1
    with pytest.raises(errors.NoDataError, match=r"the first is c000/zzz\.png"):
        stoker.open(tmp_path, size=8, labels={"c000/zzz.png": 1})


@pytest.mark.parametrize("kind", ["cached images", "tiff", "text"])
def test_a_cache_at_home_is_made_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    write, _, how = LINKS[kind]
    indexed = {"labels": "data", "foreground": 0.5, "sampling": "uniform"} if kind == "tiff" else {}
    how = how | indexed | {"cache": "~/cache"}
    texts.tokenizer(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(tmp_path / "data", [5, 4])
    assert len(epoch(stoker.open("data", **how)))
    assert (tmp_path / "home" / "cache").is_dir()
    assert not (tmp_path / "~").exists()


def test_an_address_is_no_path() -> None:
    with pytest.raises(errors.UsageError, match=r"s3://bucket/a\.npy is no path of this machine"):
        paths.find("s3://bucket/a.npy", [".npy"])
