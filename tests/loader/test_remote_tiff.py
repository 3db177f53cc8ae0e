"""TIFF stacks in a store: the same patches as from a disk, of only the bytes that they need; every fault is named."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from PIL import Image

import stoker
from loader.scans import write_tiff
from loader.sources import access
from stoker import errors
from stoker.loader.front import Loader
from stoker.loader.source.parts import PIECE, Object
from stoker.loader.source.tiff_remote import RemoteTiff
from stoker.loader.stats import Stats
from stoker.sim.store import Store

if TYPE_CHECKING:
    from stoker.loader.source.tier import Tier

PATCH = (6, 20, 24)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "bucket").mkdir()
    with Store(tmp_path / "bucket") as served:
        yield served


def volume(seed: int, shape: tuple[int, ...] = (20, 48, 64), kind: Any = np.uint8) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(1, 255, shape).astype(kind)


def page_by_page(path: Path, array: NDArray[Any], **how: Any) -> None:
    """Tags between the pixels, as Pillow writes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pages = [Image.fromarray(page) for page in array]
    pages[0].save(path, save_all=True, append_images=pages[1:], **how)


def plain(path: Path, array: NDArray[Any], **how: Any) -> None:
    write_tiff(path, array, photometric="minisblack", **how)


LAYOUTS: dict[str, Any] = {
    "in a row": lambda path, seed: plain(path, volume(seed)),
    "one strip a page, in several pieces": lambda path, seed: plain(path, volume(seed, (24, 300, 320))),
    "big": lambda path, seed: plain(path, volume(seed), bigtiff=True),
    "ImageJ": lambda path, seed: write_tiff(path, volume(seed, kind=np.uint16), imagej=True),
    "big-endian floats": lambda path, seed: plain(path, volume(seed, kind=np.float32), byteorder=">"),
    "page by page": lambda path, seed: page_by_page(path, volume(seed)),
    "page by page, deflated": lambda path, seed: page_by_page(path, volume(seed), compression="tiff_adobe_deflate"),
    "strips": lambda path, seed: plain(path, volume(seed), compression="zlib", rowsperstrip=7),
    "strips in several pieces": lambda path, seed: plain(
        path, volume(seed, (24, 300, 320)), compression="zlib", rowsperstrip=50, bigtiff=True
    ),
    "tiles": lambda path, seed: plain(path, volume(seed), compression="zlib", tile=(16, 32)),
    "tiles that are not compressed": lambda path, seed: plain(path, volume(seed), tile=(32, 32)),
    "tiles of which some are empty": lambda path, seed: plain(
        path, np.where(np.arange(64) < 32, 0, volume(seed)).astype(np.uint8), tile=(16, 16), compression="zlib"
    ),
    "big-endian strips": lambda path, seed: plain(
        path, volume(seed, kind=np.uint16), byteorder=">", compression="zlib", rowsperstrip=5
    ),
    "channels": lambda path, seed: plain(path, volume(seed, (2, 12, 48, 64)), metadata={"axes": "CZYX"}),
}
COLOURS: dict[str, Any] = {
    "together": lambda path, seed: write_tiff(
        path, volume(seed, (9, 30, 40, 3)), photometric="rgb", compression="zlib", rowsperstrip=8
    ),
    "apart": lambda path, seed: write_tiff(
        path, volume(seed, (9, 3, 30, 40)), photometric="rgb", planarconfig="separate", compression="zlib"
    ),
}


def opened(store: Store, name: str = "vol/", **how: Any) -> Any:
    how = {"timeout_s": 20, "retries": 8, **({} if "patch" in how else {"patch": PATCH}), **how}
    return stoker.open(f"s3://{store.bucket}/{name}", store_options=access(store), **how)


def epoch(source: Any, **how: Any) -> tuple[list[dict[str, bytes]], Stats]:
    """Every batch of an epoch, in order, as bytes."""
    with Loader(source, 3, True, **how) as loader:
        got = [{name: np.asarray(value).tobytes() for name, value in batch.items()} for batch in loader]
        return got, loader.stats()


@pytest.mark.parametrize("layout", [*LAYOUTS, *COLOURS])
def test_a_stack_is_what_it_is_on_disk(store: Store, tmp_path: Path, layout: str) -> None:
    for number in range(2):
        (LAYOUTS | COLOURS)[layout](store.root / "vol" / f"{number}.tif", number)
    array = tifffile.imread(store.root / "vol" / "0.tif")
    patch = {"together": (4, 20, 24, 3), "apart": (4, 3, 20, 24)}.get(layout, PATCH)
    how: dict[str, Any] = {"patch": patch, "patches": 11, "group": 2}
    here: Any = stoker.open(store.root / "vol", **how)
    there = opened(store, **how)
    assert epoch(there)[0] == epoch(here)[0]
    assert there.fingerprint() == here.fingerprint()
    near, far = (source._volumes[0]["patch"] for source in (here, there))
    for box in (near.whole(), tuple(slice(side // 3, side // 2 + 1) for side in near.shape)):
        assert far.voxels_read(box) == near.voxels_read(box)  # so the amplification is the same
    with Loader(there, 11) as loader:
        first = next(iter(loader))
    for got, corner in zip(first["patch"], first["corner"].tolist(), strict=True):
        at: Any = (..., *(slice(a, a + side) for a, side in zip(corner, patch, strict=True)))
        np.testing.assert_array_equal(got, array[at])


def test_of_a_stack_only_what_a_box_needs_is_brought(store: Store) -> None:
    for name, how in {"row": {}, "strips": {"compression": "zlib", "rowsperstrip": 40}}.items():
        array = volume(0, (7, 2000, 1500))  # 21 MB
        plain(store.root / name / "0.tif", array, **how)
        source = opened(store, f"{name}/0.tif", patch=(4, 50, 50), patches=1)
        (one,) = (volumes["patch"] for volumes in source._volumes)
        before = source.remote().bytes_received
        box = (slice(3, 6), slice(990, 1040), slice(7, 900))
        np.testing.assert_array_equal(one.read(box), array[box])
        assert 0 < source.remote().bytes_received - before <= 6 << 20
        assert one.voxels_read(box) <= 3 * 120 * 1500


def test_opening_reads_the_tags_and_each_piece_with_some_only_once(store: Store) -> None:
    plain(store.root / "vol" / "0.tif", volume(0, (40, 300, 320)), compression="zlib")  # tags every 90 kB
    source = opened(store)
    size = (store.root / "vol" / "0.tif").stat().st_size
    assert source.remote().bytes_received <= size
    plain(store.root / "row" / "0.tif", volume(0, (40, 300, 320)))  # tags before and behind all pixels
    assert opened(store, "row/").remote().bytes_received <= 2 << 20


def test_what_is_named_is_opened(store: Store, tmp_path: Path) -> None:
    for name in ("a.tif", "b.TIFF", "deep/c.tif"):
        plain(store.root / "vol" / name, volume(0))
    (store.root / "vol" / "readme.txt").write_text("no volume")
    url = f"s3://{store.bucket}/vol"
    for name, found in {
        "vol/": ["a.tif", "b.TIFF"],
        "vol": ["a.tif", "b.TIFF"],
        "vol/*": ["a.tif", "b.TIFF"],
        "vol/*.tif": ["a.tif"],
        "vol/**/*.tif": ["a.tif", "deep/c.tif"],
        "vol/b.TIFF": ["b.TIFF"],
    }.items():
        assert opened(store, name).paths() == [f"{url}/{one}" for one in found]
    web = [f"{store.url}/vol/a.tif", f"{store.url}/vol/deep/c.tif"]
    assert stoker.open(web, patch=PATCH).paths() == web  # a plain server cannot list
    file = stoker.open(f"file://{store.root}/vol/*.tif", patch=PATCH)
    assert [Path(one).name for one in file.paths()] == ["a.tif"]
    for name in ("none/*.tif", "vol/*.png"):
        with pytest.raises(errors.NoDataError, match=r"no volume matches s3://data/.*expected Zarr arrays or \.tif"):
            opened(store, name)
    with pytest.raises(errors.VanishedError, match=r"vol/z\.tif: there is no such object"):
        opened(store, "vol/z.tif")


def test_what_was_cached_needs_no_store(store: Store, tmp_path: Path) -> None:
    for number in range(3):
        plain(store.root / "vol" / f"{number}.tif", volume(number), compression="zlib", rowsperstrip=9)
        plain(store.root / "lab" / f"{number}.tif", volume(number) // 2)
    how: dict[str, Any] = {"labels": f"s3://{store.bucket}/lab/*.tif", "cache": tmp_path / "cache"}
    first, _ = epoch(opened(store, "vol/*.tif", **how))
    store.close()
    source = opened(store, "vol/*.tif", **how)
    again, stats = epoch(source)
    assert first == again
    assert stats.remote is not None
    assert (stats.remote.requests, stats.remote.cache_kept_share) == (0, 1.0)
    assert source._stores[1].tier.figures().requests == 0


def test_labels_foreground_and_prepared_volumes(store: Store, tmp_path: Path) -> None:
    label = np.zeros((20, 48, 64), np.uint8)
    label[5, 30, 40] = 7
    plain(store.root / "vol" / "0.tif", volume(0), compression="zlib")
    plain(store.root / "lab" / "0.tif", label, compression="zlib")
    how: dict[str, Any] = {"cache": tmp_path / "cache", "patches": 6}
    source = opened(store, labels=f"s3://{store.bucket}/lab/", foreground=1.0, **how)
    with Loader(source, 3) as loader:
        assert [int(one.max()) for batch in loader for one in batch["label"]] == [7] * 6
    halved = opened(store, **how).cached(lambda array: array // 2, key="half")
    with Loader(opened(store, **how), 3) as before, Loader(halved, 3) as after:
        for one, two in zip(before, after, strict=True):
            np.testing.assert_array_equal(one["patch"] // 2, two["patch"])


FAULTS = pytest.mark.parametrize(
    ("fault", "counted"), [("503", "throttled"), ("500", "retries"), ("cut", "retries"), ("truncate", "rejected")]
)


@FAULTS
def test_a_burst_of_errors_is_retried_and_counted(tmp_path: Path, fault: str, counted: str) -> None:
    for number in range(6):
        plain(tmp_path / "bucket" / "vol" / f"{number}.tif", volume(number), compression="zlib" if number % 2 else None)
    expected, _ = epoch(stoker.open(tmp_path / "bucket" / "vol", patch=PATCH))
    with Store(tmp_path / "bucket", faults=[f"{fault}:rate=0.3"]) as store:
        got, stats = epoch(opened(store, retries=20))
    assert got == expected
    assert stats.remote is not None
    assert getattr(stats.remote, counted) >= 1


def test_a_stack_that_comes_spoiled_is_never_used(tmp_path: Path) -> None:
    plain(tmp_path / "bucket" / "vol" / "0.tif", volume(0))
    with (
        Store(tmp_path / "bucket", faults=["corrupt:rate=1"]) as store,
        pytest.raises(errors.ChecksumError, match=r"s3://data/vol/0\.tif"),
    ):
        opened(store, retries=1)


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_what_changed_or_went_since_it_was_opened_is_named(store: Store, compression: str | None) -> None:
    for number in range(3):
        plain(store.root / "vol" / f"{number}.tif", volume(number), compression=compression)
    path = store.root / "vol" / "1.tif"
    source, body = opened(store, patches=4), path.read_bytes()
    path.write_bytes(body[:-1] + b"!")
    with pytest.raises(errors.ChangedError, match=r"vol/1\.tif, row \d+: changed since it was listed.*relist=True"):
        epoch(source)
    path.write_bytes(body[:-9])
    with pytest.raises((errors.ChangedError, errors.TruncatedError), match=r"vol/1\.tif, row \d+: "):
        epoch(source)
    path.unlink()
    with pytest.raises(errors.VanishedError, match=r"vol/1\.tif, row \d+: the object is gone"):
        epoch(source)
    got, stats = epoch(source, on_error="skip")
    assert stats.skipped_rows == 4
    assert len(np.frombuffer(b"".join(batch["volume"] for batch in got), np.int64)) == 8


def bytes_of(array: NDArray[Any], **how: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, array, photometric="minisblack", **how)
    return file.getvalue()


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (b"", errors.EmptyFileError, "is empty"),
        (b"not a tiff" * 9, errors.CorruptError, "cannot be opened as TIFF"),
        (bytes_of(volume(0))[:30_000], errors.TruncatedError, "cut short: its voxels take 61440 bytes"),
        (bytes_of(volume(0), compression="zlib")[:30_000], errors.TruncatedError, r"cut short: \d+ pages are there"),
        (bytes_of(volume(0).astype("u2")), errors.OtherTypeError, "is uint16"),
    ],
)
def test_what_cannot_be_opened_is_named_or_left_out(
    store: Store, body: bytes, error: type[errors.DataError], says: str
) -> None:
    plain(store.root / "vol" / "0.tif", volume(0))
    (store.root / "vol" / "1.tif").write_bytes(body)
    with pytest.raises(error, match=rf"s3://data/vol/1\.tif: .*{says}"):
        opened(store)
    source = opened(store, on_error="skip")
    assert [one.path for one in source.skipped] == ["s3://data/vol/1.tif"]
    assert len(epoch(source)[0]) > 0


class Pieces:
    """What a stack asks of its tier, of a file of which only some pieces are there."""

    def __init__(self, path: Path, there: int) -> None:
        self._body, self._there = path.read_bytes(), there

    @contextmanager
    def held(self) -> Iterator[None]:
        yield

    def soon(self, pieces: Any) -> None:
        pass

    def take(self, piece: int) -> bytes:
        if piece >= self._there:
            raise errors.VanishedError("s3://data/0.tif", "the object is gone")
        return self._body[piece * PIECE : (piece + 1) * PIECE]


@pytest.mark.parametrize("how", [{"compression": "zlib"}, {"contiguous": False}, {}])
def test_a_stack_that_goes_while_its_tags_are_read_is_no_smaller_stack(tmp_path: Path, how: dict[str, Any]) -> None:
    path = tmp_path / "0.tif"
    with tifffile.TiffWriter(path) as file:
        for page in volume(0, (24, 300, 320)):
            file.write(page, photometric="minisblack", **how)
    nbytes = path.stat().st_size
    for there in range(-(-nbytes // PIECE)):
        with pytest.raises(errors.VanishedError, match=r"0\.tif: the object is gone"):
            RemoteTiff("s3://data/0.tif", cast("Tier", Pieces(path, there)), Object(0, nbytes, 0))


def test_a_stack_that_is_gone_before_it_is_opened_is_named_or_left_out(store: Store, tmp_path: Path) -> None:
    for number in range(2):
        plain(store.root / "vol" / f"{number}.tif", volume(number, (24, 300, 320)), compression="zlib")
    how: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": "1MiB"}
    opened(store, **how)  # lists it
    (store.root / "vol" / "1.tif").unlink()
    with pytest.raises(errors.VanishedError, match=r"vol/1\.tif: the object is gone"):
        opened(store, **how)
    source = opened(store, on_error="skip", **how)
    assert [one.path for one in source.skipped] == ["s3://data/vol/1.tif"]


def test_pixels_that_lie_behind_the_end_of_the_object_are_named(store: Store) -> None:
    page_by_page(store.root / "vol" / "0.tif", volume(0), compression="tiff_adobe_deflate")
    path = store.root / "vol" / "0.tif"
    with tifffile.TiffFile(path, mode="r+") as file:
        page: Any = file.pages[3]
        page.tags["StripOffsets"].overwrite(path.stat().st_size + 5)
    with pytest.raises(errors.TruncatedError, match=r"0\.tif, row \d+: cut short: pixels lie at bytes"):
        epoch(opened(store, sampling="grid"))
    with pytest.raises(errors.TruncatedError, match=r"0\.tif, row \d+: cut short: pixels lie at bytes"):
        epoch(stoker.open(path, patch=PATCH, sampling="grid"))
