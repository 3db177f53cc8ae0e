"""A cache that keeps images smaller: the same pixels however they came, and as careful as any cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from loader.kept import kept, used_bytes
from loader.sources import access, photo
from stoker import errors
from stoker.loader.front import Loader
from stoker.sim.store import Store

ROWS = 12


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    for row in range(ROWS):
        path = tmp_path / "bucket" / f"c{row % 2}" / f"{row:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo(row, 90 + row, 130, quality=92))
    with Store(tmp_path / "bucket") as started:
        yield started


def opened(store: Store, cache: Path | None, **how: Any) -> Any:
    options: dict[str, Any] = {"crop": "random", "flip": True, "store_options": access(store), "hedge": False} | how
    return stoker.open(f"s3://{store.bucket}/", size=24, cache=cache, **options)


def pixels(source: Any, epochs: int = 1) -> list[dict[str, Any]]:
    with Loader(source, 4, True) as loader:
        return [
            {
                key: np.asarray(image)
                for batch in loader
                for key, image in zip(batch["key"], batch["image"], strict=True)
            }
            for _ in range(epochs)
        ]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def test_what_is_delivered_does_not_depend_on_what_is_in_the_cache(store: Store, tmp_path: Path) -> None:
    first = pixels(opened(store, tmp_path / "cache", cache_side=32), epochs=3)
    assert store.stats()["reads"] == ROWS
    again = pixels(opened(store, tmp_path / "cache", cache_side=32), epochs=3)
    assert store.stats()["reads"] == ROWS
    elsewhere = pixels(opened(store, tmp_path / "full", cache_side=32, cache_bytes="1MiB", requests=1), epochs=3)
    for one, other, third in zip(first, again, elsewhere, strict=True):
        assert same(one, other)
        assert same(one, third)
    assert len(kept(tmp_path / "cache")) == ROWS
    assert used_bytes(tmp_path / "cache") < 0.5 * sum(
        path.stat().st_size for path in (tmp_path / "bucket").rglob("*.jpg")
    )


def test_it_is_a_cache_of_its_own_beside_the_whole_images(store: Store, tmp_path: Path) -> None:
    whole = pixels(opened(store, tmp_path / "cache"))[0]
    smaller = pixels(opened(store, tmp_path / "cache", cache_side=32))[0]
    assert len(kept(tmp_path / "cache")) == 2 * ROWS
    assert same(pixels(opened(store, tmp_path / "cache"))[0], whole)
    apart = [np.abs(whole[key].astype(int) - smaller[key]).mean() for key in whole]
    assert 0 < max(apart) < 12  # a crop of a smaller image is softer, and no other one


@pytest.mark.parametrize("harm", ["flip", "cut", "footer only"])
def test_what_is_damaged_is_found_and_replaced(store: Store, tmp_path: Path, harm: str) -> None:
    first = pixels(opened(store, tmp_path / "cache", cache_side=32))[0]
    victim = max(kept(tmp_path / "cache"), key=lambda one: one.offset)
    good = victim.read()
    if harm == "flip":
        victim.overwrite(bytes([good[0] ^ 1]))
    elif harm == "cut":
        victim.path.write_bytes(victim.path.read_bytes()[:-9])
    else:
        victim.overwrite(good[-36:].rjust(victim.size, b"?"))
    assert same(pixels(opened(store, tmp_path / "cache", cache_side=32))[0], first)
    assert store.stats()["reads"] == ROWS + 1
    assert next(one.read() for one in kept(tmp_path / "cache") if one.name == victim.name) == good


def test_what_is_no_image_is_named_and_not_kept(store: Store, tmp_path: Path) -> None:
    (tmp_path / "bucket" / "c0" / "bad.jpg").write_bytes(b"\xff\xd8 no image")
    source = opened(store, tmp_path / "cache", cache_side=32)
    with pytest.raises(errors.CorruptError, match=r"c0/bad\.jpg.*cannot be decoded"):
        pixels(source)
    with Loader(opened(store, tmp_path / "cache", cache_side=32), 4, on_error="skip") as loader:
        assert sum(len(batch["key"]) for batch in loader) == ROWS
    assert len(kept(tmp_path / "cache")) == ROWS


def test_whatever_goes_wrong_while_an_image_is_made_smaller_reaches_who_waits(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any) -> Any:
        raise RuntimeError("no room for pixels")

    monkeypatch.setattr("stoker.loader.source.images.shrunk", breaks)
    with pytest.raises(RuntimeError, match="no room for pixels"):
        pixels(opened(store, tmp_path / "cache", cache_side=32))


def test_staging_keeps_them_smaller_too(store: Store, tmp_path: Path) -> None:
    staged = opened(store, tmp_path / "cache", cache_side=32).stage()
    reads = store.stats()["reads"]
    assert same(pixels(staged)[0], pixels(opened(store, tmp_path / "other", cache_side=32))[0])
    assert reads == ROWS
    assert [one.size for one in kept(tmp_path / "cache")] == [one.size for one in kept(tmp_path / "other")]


@pytest.mark.parametrize(
    ("how", "says"), [({"cache_side": 0}, "cache_side is 0"), ({"cache": None}, "cache_side needs cache")]
)
def test_wrong_arguments_are_refused(store: Store, tmp_path: Path, how: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.UsageError, match=says):
        opened(store, how.pop("cache", tmp_path / "cache"), **({"cache_side": 32} | how))
