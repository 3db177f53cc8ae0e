"""Staging: a deterministic subset, copied ahead, verified, resumable, with its price."""

from pathlib import Path
from typing import Any

import pytest

import stoker
from loader.kept import kept
from loader.sources import SIDE, access, check, pictures
from stoker import errors
from stoker.loader.front import Loader
from stoker.loader.source.subset import Subset
from stoker.sim.store import Store

ROWS = 80


def opened(store: Store, cache: Path | None, **how: Any) -> Any:
    return stoker.open(f"s3://{store.bucket}/", size=SIDE, store_options=access(store), cache=cache, hedge=False, **how)


def numbers(source: Any) -> list[int]:
    with Loader(source, 8, True) as loader:
        return sorted(i for batch in loader for i in check(batch))


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    pictures(tmp_path / "bucket", [30, 50])
    return tmp_path / "bucket"


def test_a_subset_is_copied_once_and_trains_without_the_store(
    bucket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(bucket, latency_s=0.01) as store:
        data = opened(store, tmp_path / "cache").stage(0.25, seed=3)
        assert store.stats()["reads"] == len(data) == 20
        again = opened(store, tmp_path / "cache").stage(0.25, seed=3)
        assert store.stats()["reads"] == 20
        other = opened(store, tmp_path / "cache").stage(0.25, seed=4)
    assert numbers(data) == numbers(again) != numbers(other)
    assert again.staged.copied == 0
    staged = data.staged
    assert (staged.images, staged.copied) == (20, 20)
    assert staged.break_even_epochs is not None
    assert staged.break_even_epochs >= 1
    said = capsys.readouterr().err
    assert "staging 20 images" in said
    assert "s left" in said
    assert "staging pays after" in said


def test_numbers_of_images_and_classes_choose_too(bucket: Path, tmp_path: Path) -> None:
    with Store(bucket) as store:
        source = opened(store, tmp_path / "cache")
        assert len(source.stage(7)) == 7
        part = source.stage(["c001"])
        assert numbers(part) == list(range(30, 80))
        assert len(source.stage()) == ROWS
        for wrong in (0, -1, 1.5, 81, True, ["c009"], "c001", 0.0, float("nan"), []):
            with pytest.raises(errors.UsageError, match="subset"):
                source.stage(wrong)
        with pytest.raises(errors.UsageError, match="open the whole source"):
            part.stage(0.5)
        with pytest.raises(errors.UsageError, match="cache='directory'"):
            opened(store, None).stage(0.5)


def test_what_was_interrupted_goes_on_where_it_stopped_and_damage_is_repaired(bucket: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with Store(bucket, faults=["500:nth=50"]) as store, pytest.raises(errors.RemoteError):
        opened(store, cache, retries=0, requests=2).stage()
    held = kept(cache)
    assert 40 < len(held) < ROWS
    held[3].overwrite(b"?" * 20)
    with Store(bucket) as store:
        data = opened(store, cache).stage()
        assert store.stats()["reads"] == ROWS - len(held) + 1
    assert numbers(data) == list(range(ROWS))


def test_a_subset_that_the_budget_cannot_hold_is_refused_with_both_sizes(bucket: Path, tmp_path: Path) -> None:
    for number in range(400):
        (bucket / "c000" / f"x{number:04}.png").write_bytes(b"?" * 2000)
    with Store(bucket) as store:
        source = opened(store, tmp_path / "cache", cache_bytes="1MiB")
        with pytest.raises(errors.UsageError, match=r"take 2\.\d MB and cache_bytes is 1\.0 MB"):
            source.stage()
        part = source.stage(["c001"])
        assert source.remote().cache_kept_share < 1
        reads = store.stats()["reads"]
        assert numbers(part) == list(range(30, 80))
        assert numbers(opened(store, tmp_path / "cache", cache_bytes="1MiB").stage(["c001"])) == list(range(30, 80))
        assert store.stats()["reads"] == reads  # staged images are what the budget keeps, also after a new start


def test_a_subset_survives_json() -> None:
    for subset in (Subset(0.5, 3), Subset(7), Subset(("a", "b")), Subset(None)):
        assert Subset.parse(subset.to_json()) == subset
