"""Volumes: patches from several kinds of files, drawn purely, read once for several, prepared once."""

import itertools
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tracemalloc
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import stoker
from loader.scans import write_tiff, write_zarr
from stoker import errors
from stoker.loader.front import Loader
from stoker.loader.source import corners, foreground
from stoker.loader.source.volume import open_volume
from stoker.loader.source.volumes import VolumeSource

sides = st.tuples(*[st.integers(1, 9)] * 3)


def volume(seed: int, shape: tuple[int, ...] = (20, 24, 28)) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(1, 255, shape, np.uint8)


def opened(path: Path, **options: Any) -> VolumeSource:
    source = stoker.open(path, **{"patch": (6, 8, 10), "cache": path.parent / "cache", **options})
    assert isinstance(source, VolumeSource)
    return source


def seen(source: VolumeSource, batch_size: int = 3, **how: Any) -> list[tuple[int, tuple[int, ...], bytes]]:
    """Volume, corner and voxels of every patch of an epoch, in order."""
    with Loader(source, batch_size, True, **how) as loader:
        return [
            (int(v), tuple(c.tolist()), p.numpy().tobytes())
            for batch in loader
            for v, c, p in zip(batch["volume"], batch["corner"], batch["patch"], strict=True)
        ]


@given(
    patch=sides,
    more=st.tuples(*[st.integers(0, 9)] * 3),
    count=st.integers(1, 9),
    key=st.tuples(*[st.integers(0, 5)] * 4),
)
def test_corners_are_pure_lie_inside_and_near_each_other(
    patch: tuple[int, ...], more: tuple[int, ...], count: int, key: tuple[int, ...]
) -> None:
    shape = [part + extra for part, extra in zip(patch, more, strict=True)]
    found = corners.draw(patch, shape, count, key)
    assert found.shape == (count, 3)
    assert (found >= 0).all()
    assert (found + patch <= shape).all()
    assert (found.max(0) - found.min(0) + patch <= corners.reach(patch, shape)).all()
    np.testing.assert_array_equal(found, corners.draw(patch, shape, count, key))


def test_every_corner_is_equally_likely_also_within_a_group() -> None:
    drawn = np.stack([corners.draw((8,), (16,), 3, (0, epoch, 0, 0)) for epoch in range(9_000)])
    for inner in range(3):
        counts = np.bincount(drawn[:, inner, 0], minlength=9)
        assert len(counts) == 9
        # Six standard deviations of a count of 1,000.
        assert np.abs(counts - 1_000).max() < 6 * np.sqrt(1_000)


@given(
    patch=sides,
    more=st.tuples(*[st.integers(0, 9)] * 3),
    count=st.integers(1, 9),
    voxels=st.lists(st.tuples(*[st.floats(0, 0.999)] * 3), min_size=1, max_size=3),
    epoch=st.integers(0, 9),
)
def test_a_foreground_patch_holds_a_foreground_voxel(
    patch: tuple[int, ...], more: tuple[int, ...], count: int, voxels: list[tuple[float, ...]], epoch: int
) -> None:
    shape = np.array(patch) + more
    every = (np.array(voxels) * shape).astype(np.int64)
    found = corners.draw(patch, shape.tolist(), count, (0, epoch, 0, 0), every, 1.0)
    assert (found >= 0).all()
    assert (found + patch <= shape).all()
    for corner in found:
        assert ((every >= corner) & (every < corner + patch)).all(axis=1).any()


@settings(max_examples=30, deadline=None)
@given(patch=sides, more=st.tuples(*[st.integers(0, 9)] * 3))
def test_a_grid_covers_every_voxel(patch: tuple[int, ...], more: tuple[int, ...]) -> None:
    shape = [part + extra for part, extra in zip(patch, more, strict=True)]
    covered = np.zeros(shape, bool)
    for corner in corners.grid(patch, shape):
        covered[tuple(slice(a, a + part) for a, part in zip(corner, patch, strict=True))] = True
    assert covered.all()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    patches=st.integers(1, 11),
    group=st.integers(1, 5),
    batch_size=st.integers(1, 5),
    threads=st.integers(0, 3),
    window=st.integers(1, 5),
    epoch=st.integers(0, 3),
)
def test_uniform_patches_are_right_pure_and_each_comes_once(
    patches: int, group: int, batch_size: int, threads: int, window: int, epoch: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "vol"
        arrays = [volume(seed, (10 + seed, 12, 14)) for seed in range(3)]
        for number, array in enumerate(arrays):
            write_zarr(folder / f"{number}.zarr", array, (4, 5, 6))
        source = opened(folder, patches=patches, group=group)
        with Loader(source, batch_size, True, seed=4, threads=threads, window=window) as loader:
            loader.set_epoch(epoch)
            got = []
            for batch in loader:
                for i, (number, corner) in enumerate(zip(batch["volume"], batch["corner"], strict=True)):
                    cut = tuple(slice(a, a + part) for a, part in zip(corner.tolist(), (6, 8, 10), strict=True))
                    np.testing.assert_array_equal(batch["patch"][i], arrays[number][cut])
                    got.append((int(number), tuple(corner.tolist())))
        expected = []
        for number, array in enumerate(arrays):
            for at, first in enumerate(range(0, patches, group)):
                count = min(group, patches - first)
                drawn = corners.draw((6, 8, 10), array.shape, count, (4, epoch, number, at))
                expected += [(number, tuple(corner)) for corner in drawn.tolist()]
        assert sorted(got) == sorted(expected)


def test_the_same_samples_come_with_any_threads_ranks_and_seed_of_another_epoch_differ(tmp_path: Path) -> None:
    for number in range(3):
        write_zarr(tmp_path / "vol" / f"{number}.zarr", volume(number), (8, 8, 8))
    source = opened(tmp_path / "vol", patches=10)
    first = seen(source, seed=1)
    assert seen(source, 5, seed=1, threads=0) == first
    by_rank = [seen(source, 3, seed=1, rank=rank, world_size=2) for rank in range(2)]
    assert sorted(itertools.chain(*by_rank)) == sorted(first)
    assert not set(seen(source, seed=2)) & set(first)


def test_all_kinds_of_files_give_the_same_patches(tmp_path: Path) -> None:
    for number in range(2):
        array = volume(number)
        write_zarr(tmp_path / "a" / f"{number}.zarr", array, (7, 9, 11), compress=True)
        versions: list[tuple[Any, str]] = [(2, "b"), (3, "c")]
        for version, folder in versions:
            made = zarr.create_array(
                tmp_path / folder / f"{number}.zarr",
                shape=array.shape,
                chunks=(7, 9, 11),
                dtype="u1",
                zarr_format=version,
            )
            made[...] = array
        write_tiff(tmp_path / "d" / f"{number}.tif", array, photometric="minisblack")
        write_tiff(tmp_path / "e" / f"{number}.tiff", array, photometric="minisblack", compression="zlib")
        write_tiff(tmp_path / "f" / f"{number}.tif", array, photometric="minisblack", tile=(16, 16), compression="zlib")
    expected = seen(opened(tmp_path / "a"))
    for folder in "bcdef":
        assert seen(opened(tmp_path / folder)) == expected, folder


def test_big_endian_stacks_channels_and_two_axes_work(tmp_path: Path) -> None:
    array = np.arange(10 * 12 * 14, dtype=np.uint16).reshape(10, 12, 14)
    write_tiff(tmp_path / "big" / "0.tif", array, byteorder=">", photometric="minisblack")
    with Loader(opened(tmp_path / "big", patch=(3, 4, 5)), 2) as loader:
        batch = next(iter(loader))
    z, y, x = batch["corner"][0].tolist()
    np.testing.assert_array_equal(batch["patch"][0], array[z : z + 3, y : y + 4, x : x + 5])
    write_zarr(tmp_path / "wide" / "0.zarr", array, (1, 6, 7))
    with Loader(opened(tmp_path / "wide", patch=(4, 5), patches=3), 3) as loader:
        batch = next(iter(loader))
    assert batch["patch"].shape == (3, 10, 4, 5)
    y, x = batch["corner"][2].tolist()
    np.testing.assert_array_equal(batch["patch"][2], array[:, y : y + 4, x : x + 5])


def test_labels_are_the_same_windows_and_foreground_is_found(tmp_path: Path) -> None:
    for number in range(3):
        array = volume(number, (40, 40, 40))
        label = np.zeros_like(array)
        if number < 2:
            label[number * 5, 7, 30] = 1
        write_zarr(tmp_path / "vol" / f"scan_{number}.zarr", array, (8, 8, 8))
        write_zarr(tmp_path / "lab" / f"mask_{number}.zarr", label, (40, 40, 40))
    named = {"mask": tmp_path / "lab", "again": tmp_path / "vol"}
    source = opened(tmp_path / "vol", labels=named, foreground=1.0, patches=9)
    for _ in range(2):
        with Loader(source, 4, True) as loader:
            for batch in loader:
                np.testing.assert_array_equal(batch["patch"], batch["again"])
                holds = batch["mask"].flatten(1).amax(1)
                np.testing.assert_array_equal(holds, batch["volume"] < 2)
        source = opened(tmp_path / "vol", labels=named, foreground=1.0, patches=9)  # from the cache now
    assert len(list((tmp_path / "cache").glob("foreground-*.npy"))) == 3


def test_volumes_of_one_size_and_time_are_not_taken_for_each_other(tmp_path: Path) -> None:
    for number in range(2):
        label = np.zeros((20, 24, 28), np.uint8)
        label[number * 19, number * 23, number * 27] = 1
        for folder, array in (("vol", np.full_like(label, number)), ("lab", label)):
            path = tmp_path / folder / f"{number}.tif"
            write_tiff(path, array, photometric="minisblack")
            os.utime(path, (10**9, 10**9))
    source = opened(tmp_path / "vol", labels=tmp_path / "lab", foreground=1.0, patches=4)
    with Loader(source.cached(lambda array: array + 1, key="more"), 8) as loader:
        for batch in loader:
            assert (batch["label"].flatten(1).amax(1) == 1).all()
            np.testing.assert_array_equal(batch["patch"][:, 0, 0, 0], batch["volume"] + 1)


def test_amplification_is_what_was_decoded_over_what_was_used(tmp_path: Path) -> None:
    write_zarr(tmp_path / "vol" / "0.zarr", volume(0, (64, 64, 64)), (64, 64, 64))
    source = opened(tmp_path / "vol", patch=(16, 16, 16), patches=4, group=2)
    with Loader(source, 4, True) as loader:
        list(loader)
        # Two groups, and the whole chunk was decoded for each; the next epoch may have begun.
        assert loader.stats().amplification == pytest.approx(2 * 64**3 / (4 * 16**3))
    write_zarr(tmp_path / "fit" / "0.zarr", volume(0, (64, 64, 64)), (8, 8, 8))
    with Loader(opened(tmp_path / "fit", patch=(16, 16, 16), patches=64), 4, True) as loader:
        list(loader)
        amplification = loader.stats().amplification
    assert amplification is not None
    assert amplification < 1.2


def test_a_missing_chunk_is_named_or_filled_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "vol" / "0.zarr"
    zarr.create_array(path, shape=(20, 24, 28), chunks=(10, 12, 14), dtype="u1", fill_value=9)[...] = volume(0)
    (path / "c" / "1" / "1" / "1").unlink()
    with (
        Loader(opened(tmp_path / "vol", sampling="grid"), 2) as loader,
        pytest.raises(
            errors.MissingChunkError, match=r"0\.zarr, row \d+: .*chunk \{1, 1, 1\}.*missing='fill'"
        ) as caught,
    ):
        list(loader)
    assert (caught.value.path, caught.value.row is not None) == (str(path), True)
    with Loader(opened(tmp_path / "vol", sampling="grid", missing="fill"), 2) as loader:
        assert any((batch["patch"] == 9).any() for batch in loader)
    with Loader(opened(tmp_path / "vol", sampling="grid"), 2, on_error="skip") as loader:
        rows = sum(len(batch["patch"]) for batch in loader)
        stats = loader.stats()
    assert rows + stats.skipped_rows == len(loader._engine.source)  # type: ignore[attr-defined]
    assert 0 < stats.skipped_rows < rows + stats.skipped_rows


def _flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x55
    path.write_bytes(raw)


def test_damage_is_named(tmp_path: Path) -> None:
    for number in range(2):
        write_zarr(tmp_path / "vol" / f"{number}.zarr", volume(number), (10, 12, 14))
    source = opened(tmp_path / "vol", sampling="grid")
    _flip(tmp_path / "vol" / "1.zarr" / "c" / "0" / "0" / "0", 100)
    with Loader(source, 2) as loader, pytest.raises(errors.CorruptError, match=r"1\.zarr, row 0: "):
        list(loader)
    shutil.rmtree(tmp_path / "vol" / "1.zarr")
    with Loader(source, 2) as loader, pytest.raises(errors.VanishedError, match=r"1\.zarr, row 0: was there"):
        list(loader)
    for compression in (None, "zlib"):
        write_tiff(tmp_path / "tif" / "0.tif", volume(0), photometric="minisblack", compression=compression)
        source = opened(tmp_path / "tif", sampling="grid")
        os.truncate(tmp_path / "tif" / "0.tif", 9000)
        with (
            Loader(source, 2) as loader,
            pytest.raises((errors.TruncatedError, errors.CorruptError), match=r"0\.tif, row \d+: "),
        ):
            list(loader)


def test_a_stack_of_which_the_last_pages_are_gone_is_no_smaller_stack(tmp_path: Path) -> None:
    pages = [Image.fromarray(page) for page in volume(0)]
    for compression in (None, "tiff_adobe_deflate"):
        path = tmp_path / "vol" / "0.tif"
        path.parent.mkdir(exist_ok=True)
        pages[0].save(path, save_all=True, append_images=pages[1:], compression=compression)  # page by page
        assert len(opened(tmp_path / "vol", sampling="grid")) > 0
        for share in (0.4, 0.9):
            os.truncate(path, int(path.stat().st_size * share))
            with pytest.raises(
                errors.TruncatedError, match=r"0\.tif: cut short: \d+ pages are there, and .* more follow"
            ):
                opened(tmp_path / "vol", sampling="grid")


def test_a_compression_that_another_package_decodes_is_said_when_it_is_opened(tmp_path: Path) -> None:
    if find_spec("imagecodecs") is not None:
        pytest.skip("imagecodecs is there")
    pages = [Image.fromarray(page) for page in volume(0)]
    (tmp_path / "vol").mkdir()
    pages[0].save(tmp_path / "vol" / "0.tif", save_all=True, append_images=pages[1:], compression="tiff_lzw")
    with pytest.raises(errors.UsageError, match=r"0\.tif is compressed with LZW, .* pip install imagecodecs"):
        opened(tmp_path / "vol", on_error="skip")


def test_a_compressed_stack_takes_the_memory_of_a_page_not_of_all_pages_around_a_patch(tmp_path: Path) -> None:
    write_tiff(
        tmp_path / "vol" / "0.tif", np.ones((40, 1000, 1000), np.uint8), photometric="minisblack", compression="zlib"
    )
    stack = open_volume(str(tmp_path / "vol" / "0.tif"))
    tracemalloc.start()
    assert stack.read((slice(0, 40), slice(10, 20), slice(0, 1000))).sum() == 40 * 10 * 1000
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 8e6


def test_a_compressed_stack_that_is_written_anew_is_read_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "vol" / "0.tif"
    write_tiff(path, volume(0), photometric="minisblack", compression="zlib")
    stack = open_volume(str(path))
    write_tiff(path, volume(1), photometric="minisblack", compression="zlib", rowsperstrip=5)
    np.testing.assert_array_equal(stack.read(stack.whole()), volume(1))
    write_tiff(path, volume(1, (20, 24, 29)), photometric="minisblack", compression="zlib")
    with pytest.raises(errors.OtherTypeError, match=r"0\.tif: .*shape \(20, 24, 29\); it was .*\(20, 24, 28\) when"):
        stack.read(stack.whole())


def test_a_stack_whose_pages_lie_in_several_files_is_refused(tmp_path: Path) -> None:
    tag = '<TiffData FirstZ="{0}" IFD="0" PlaneCount="1"><UUID FileName="{0}.ome.tif">urn:uuid:{0}</UUID></TiffData>'
    for number, page in enumerate(volume(0, (2, 24, 28))):
        about = (
            f'<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="urn:uuid:{number}">'
            '<Image ID="Image:0">'
            '<Pixels DimensionOrder="XYZCT" Type="uint8" SizeX="28" SizeY="24" SizeZ="2" SizeC="1" SizeT="1">'
            f"{tag.format(0)}{tag.format(1)}</Pixels></Image></OME>"
        )
        options: dict[str, Any] = {"description": about, "metadata": None, "compression": "zlib"}
        tifffile.imwrite(tmp_path / f"{number}.ome.tif", page, photometric="minisblack", **options)
    with pytest.raises(errors.OtherTypeError, match=r"0\.ome\.tif: its pages lie in several files"):
        open_volume(str(tmp_path / "0.ome.tif"))


def test_of_a_compressed_stack_only_the_strips_of_a_box_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "vol" / "0.tif"
    write_tiff(path, volume(0), photometric="minisblack", compression="zlib", rowsperstrip=6)
    with tifffile.TiffFile(path) as file:
        last: Any = file.pages[4]
        at = last.dataoffsets[3]
    with path.open("r+b") as damaged:
        damaged.seek(at)
        damaged.write(b"nonsense")
    stack = open_volume(str(path))
    box = (slice(2, 9), slice(3, 18), slice(0, 28))
    np.testing.assert_array_equal(stack.read(box), volume(0)[box])
    assert stack.voxels_read(box) == 7 * 18 * 28
    with pytest.raises(errors.CorruptError, match=r"0\.tif: page 4: "):
        stack.read(stack.whole())


def test_all_types_of_a_stack_arrive_that_torch_has(tmp_path: Path) -> None:
    for kind in ("i8", "u8", "u4", "f2", "?"):
        array = volume(0).astype(kind)
        write_tiff(tmp_path / kind.replace("?", "b") / "0.tif", array, photometric="minisblack")
        with Loader(opened(tmp_path / kind.replace("?", "b"), sampling="grid"), 1) as loader:
            first = next(iter(loader))
        np.testing.assert_array_equal(first["patch"][0], array[:6, :8, :10])


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda p: write_zarr(p / "1.zarr", volume(0).astype("u2")), errors.OtherTypeError, r"1\.zarr: is uint16"),
        (lambda p: write_zarr(p / "1.zarr", volume(0, (4, 24, 28))), errors.OtherTypeError, "smaller than the patch"),
        (lambda p: write_zarr(p / "1.zarr", volume(0, (24, 28)), (4, 4)), errors.OtherTypeError, "expected 3 axes"),
        (lambda p: (p / "1.zarr").mkdir(), errors.CorruptError, r"neither .zarray nor zarr\.json"),
        (
            lambda p: [(p / "1.zarr").mkdir(), (p / "1.zarr" / "zarr.json").write_text("[1]")],
            errors.CorruptError,
            r"its zarr\.json holds list",
        ),
        (lambda p: (p / "1.tif").write_bytes(b""), errors.EmptyFileError, "the file is empty"),
        (lambda p: (p / "1.tif").write_bytes(b"not a tiff"), errors.CorruptError, "cannot be opened as TIFF"),
    ],
)
def test_a_bad_volume_is_named_or_left_out(tmp_path: Path, make: Any, error: type[errors.DataError], says: str) -> None:
    write_zarr(tmp_path / "vol" / "0.zarr", volume(0), (10, 12, 14))
    make(tmp_path / "vol")
    with pytest.raises(error, match=says):
        opened(tmp_path / "vol")
    source = opened(tmp_path / "vol", on_error="skip")
    assert len(source.skipped) == 1
    assert {number for number, _, _ in seen(source)} == {0}


def test_wrong_calls_say_what_is_allowed(tmp_path: Path) -> None:
    write_zarr(tmp_path / "vol" / "0.zarr", volume(0), (10, 12, 14))
    write_zarr(tmp_path / "lab" / "7.zarr", volume(0), (10, 12, 14))
    zarr.create_group(tmp_path / "group.zarr").create_array("0", shape=(4, 4), dtype="u1")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"patch": 5}, "patch is 5; expected a size for each axis"),
        ({"patch": (5, 0, 5)}, "expected a size for each axis"),
        ({"patches": 0}, "patches is 0"),
        ({"group": 0}, "group is 0"),
        ({"sampling": "random"}, "'uniform' or 'grid'"),
        ({"sampling": "grid", "patches": 3}, "go with 'uniform'"),
        ({"foreground": 0.5}, "name them with labels="),
        ({"foreground": 2, "labels": tmp_path / "lab"}, "a share from 0 to 1"),
        ({"labels": tmp_path / "lab"}, "their names differ"),
        ({"labels": {"corner": tmp_path / "lab"}}, "which is taken"),
        ({"missing": "zero"}, "'raise' or 'fill'"),
        ({"width": 3}, "width= is no option here"),
    ]
    for options, says in wrong:
        with pytest.raises(errors.UsageError, match=says):
            opened(tmp_path / "vol", **options)
    for path, says in [
        ("none.zarr", "does not exist"),
        ("none*.zarr", "no volume matches"),
        ("group.zarr", "a group of"),
    ]:
        with pytest.raises(errors.UsageError, match=says):
            opened(tmp_path / path)
    tifffile.imwrite(tmp_path / "0.tif", volume(0), photometric="minisblack")
    with pytest.raises(errors.UsageError, match=r"0\.tif needs patch="):
        stoker.open(tmp_path / "0.tif")


def test_a_source_can_be_pickled(tmp_path: Path) -> None:
    write_zarr(tmp_path / "vol" / "0.zarr", volume(0), (10, 12, 14))
    source = opened(tmp_path / "vol")
    again = pickle.loads(pickle.dumps(source))
    assert seen(again) == seen(source)
    assert again.fingerprint() == source.fingerprint()


def test_preparing_runs_once_for_each_volume_and_gives_the_same_patches(tmp_path: Path) -> None:
    for number in range(3):
        write_tiff(tmp_path / "vol" / f"{number}.tif", volume(number), photometric="minisblack")
        write_tiff(tmp_path / "lab" / f"{number}.tif", volume(number) // 2, photometric="minisblack")
    source = opened(tmp_path / "vol", labels=tmp_path / "lab")
    calls = []

    def half(array: NDArray[np.uint8]) -> NDArray[Any]:
        calls.append(array.shape)
        return array.astype(np.float32) / 2

    prepared = source.cached(half, key="half")
    assert len(calls) == 3
    with Loader(source, 4, True) as plain, Loader(prepared, 4, True) as loader:
        for one, two in zip(plain, loader, strict=True):
            assert two["patch"].dtype.is_floating_point
            np.testing.assert_array_equal(one["patch"] / 2, two["patch"])
            np.testing.assert_array_equal(one["corner"], two["corner"])
            np.testing.assert_array_equal(one["label"], two["label"])
    source.cached(half, key="half")
    assert len(calls) == 3
    source.cached(half, key="other")
    assert len(calls) == 6
    write_tiff(tmp_path / "vol" / "1.tif", volume(9), photometric="minisblack")
    opened(tmp_path / "vol").cached(half, key="half")
    assert len(calls) == 7
    with pytest.raises(errors.UsageError, match="key is ''"):
        source.cached(half, key="")
    with pytest.raises(errors.MapError, match=r"the function made \(20, 24\) of .*0\.tif"):
        source.cached(lambda array: array[..., 0], key="flat")
    with pytest.raises(errors.MapError, match=r"the function failed on .*\.tif: ZeroDivisionError"):
        source.cached(lambda _: 1 // 0, key="broken")  # type: ignore[arg-type,return-value]
    assert not list((tmp_path / "cache").glob("*.partial-*"))


PREPARE = """
    import os, signal, sys
    import stoker

    def fn(array):
        if len(os.listdir(sys.argv[2])) > int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return array + 1

    stoker.open(sys.argv[1], patch=(6, 8, 10), cache=sys.argv[2]).cached(fn, key="more")
"""


@pytest.mark.parametrize("form", ["zarr", "tif"])
def test_a_volume_that_was_copied_into_an_old_one_with_its_old_time_is_prepared_anew(tmp_path: Path, form: str) -> None:
    arrays = [np.full((20, 24, 28), value, np.uint8) for value in (1, 2)]
    place, other = tmp_path / "vol" / f"0.{form}", tmp_path / f"other.{form}"
    for path, array in zip((place, other), arrays, strict=True):
        write_zarr(path, array, (20, 24, 28)) if form == "zarr" else write_tiff(path, array, photometric="minisblack")
    files = [one for one in [place, *place.rglob("*")] if one.is_file()]
    for expected in (1, 2):
        for file in files:
            os.utime(file, ns=(10**18, 10**18))
        with Loader(opened(tmp_path / "vol").cached(lambda array: array, key="same"), 1) as loader:
            assert next(iter(loader))["patch"].unique().tolist() == [expected]
        for file in files:
            file.write_bytes((other / file.relative_to(place)).read_bytes())


def test_preparing_killed_half_way_goes_on_where_it_stopped(tmp_path: Path) -> None:
    for number in range(6):
        write_zarr(tmp_path / "vol" / f"{number}.zarr", volume(number), (10, 12, 14))
    cache = tmp_path / "cache"
    cache.mkdir()
    command = [sys.executable, "-c", textwrap.dedent(PREPARE), str(tmp_path / "vol"), str(cache), "4"]
    assert subprocess.run(command, check=False).returncode == -9
    done = len(list(cache.glob("*.zarr")))
    assert 0 < done < 6
    calls = []

    def fn(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
        calls.append(1)
        return array + 1

    prepared = opened(tmp_path / "vol").cached(fn, key="more")
    assert len(calls) == 6 - done
    with Loader(opened(tmp_path / "vol"), 4) as plain, Loader(prepared, 4) as loader:
        for one, two in zip(plain, loader, strict=True):
            np.testing.assert_array_equal(one["patch"].numpy() + 1, two["patch"])
    assert not list(cache.glob("*.partial-*"))


def test_preparing_onto_a_full_disk_is_named(tmp_path: Path) -> None:
    write_zarr(tmp_path / "vol" / "0.zarr", volume(0, (40, 40, 40)), (10, 12, 14))
    code = """
        import resource, signal, sys
        import stoker
        source = stoker.open(sys.argv[1], patch=(6, 8, 10), cache=sys.argv[2])
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        try:
            source.cached(lambda array: array, key="same")
        except stoker.errors.DiskFullError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "vol"), str(tmp_path / "cache")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "no room for a prepared volume in" in done.stdout
    assert not list((tmp_path / "cache").glob("*.zarr*"))


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (["images/s1/ct.tif", "images/s2/ct.tif"], ["labels/s1/ct.tif", "labels/s2/ct.tif"]),
        (["vol/scan.1.tif", "vol/scan.2.tif"], ["lab/scan.1.tif", "lab/scan.2.tif"]),
        (["vol/scan.a.tif", "vol/scan.b.tif"], ["lab/scan.a.tif", "lab/scan.b.tif"]),
        (["d/anna/ct.tif", "d/bob/ct.tif"], ["d/anna/seg.tif", "d/bob/seg.tif"]),
        (["d/left_1_ct.tif", "d/right_1_ct.tif"], ["d/left_1_seg.tif", "d/right_1_seg.tif"]),
        (["vol/a.tif", "vol/b.tif"], ["lab/2/a.tif", "lab/1/b.tif"]),
        (["a/ct_1.tif", "b/ct_10.tif"], ["lab_1.tif", "lab_10.tif"]),
    ],
)
def test_a_volume_gets_its_own_labels_wherever_the_difference_lies_in_their_names(
    tmp_path: Path, images: list[str], labels: list[str]
) -> None:
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        write_tiff(tmp_path / image, np.full((8, 8, 8), number, np.uint8))
        write_tiff(tmp_path / label, np.full((8, 8, 8), 10 + number, np.uint8))
    source = stoker.open(
        [tmp_path / image for image in images], patch=(8, 8, 8), labels=[tmp_path / label for label in labels]
    )
    with Loader(source, 1) as loader:
        assert [(int(b["patch"].max()), int(b["label"].max())) for b in loader] == [(0, 10), (1, 11)]


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (["vol/a.tif", "vol/b.tif"], ["lab/x.tif", "lab/y.tif"]),
        (["vol/s1/ct.tif", "vol/s2/ct.tif"], ["lab/s11/ct.tif", "lab/s12/ct.tif"]),
        (["vol/anna.tif", "vol/anne.tif"], ["lab/maria.tif", "lab/marie.tif"]),
        (["vol/a/ct.tif", "vol/b/ct.tif"], ["lab/b/ct.tif", "lab/c/ct.tif"]),
        (["vol/scan_1.tif"], ["lab/mask_2.tif"]),
    ],
)
def test_labels_that_the_names_do_not_tell_apart_are_refused(
    tmp_path: Path, images: list[str], labels: list[str]
) -> None:
    for one in images + labels:
        write_tiff(tmp_path / one, np.ones((8, 8, 8), np.uint8))
    with pytest.raises(errors.UsageError, match=r"vol/.*\.tif .*their names differ; call them alike"):
        stoker.open(
            [tmp_path / image for image in images], patch=(8, 8, 8), labels=[tmp_path / label for label in labels]
        )


@pytest.mark.parametrize(("shape", "patch"), [((3, 12, 12, 12), (4, 4, 4)), ((6, 12, 12), (4, 4))])
def test_foreground_is_found_in_labels_with_channels(
    tmp_path: Path, shape: tuple[int, ...], patch: tuple[int, ...]
) -> None:
    label = np.zeros(shape, np.uint8)
    label[(-1, *(9,) * len(patch))] = 5
    write_tiff(tmp_path / "vol" / "0.tif", np.ones(shape, np.uint8), photometric="minisblack")
    write_tiff(tmp_path / "lab" / "0.tif", label, photometric="minisblack")
    source = opened(tmp_path / "vol", patch=patch, labels=tmp_path / "lab", foreground=1.0, patches=12)
    with Loader(source, 4, True) as loader:
        assert [(one == 5).sum().item() for batch in loader for one in batch["label"]] == [1] * 12


@pytest.mark.parametrize("form", ["zarr", "tiff"])
def test_the_search_for_foreground_takes_little_memory_also_where_all_is_foreground(tmp_path: Path, form: str) -> None:
    label = (np.random.default_rng(0).random((64, 256, 256)) < 0.9).astype(np.uint8)
    if form == "zarr":
        write_zarr(tmp_path / "0.zarr", label, (48, 100, 256))
    else:
        write_tiff(tmp_path / "0.tif", label, photometric="minisblack")
    found = next(tmp_path.iterdir())
    tracemalloc.start()
    voxels = foreground.search(open_volume(str(found)))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 32e6
    expected = np.sort(corners.sample_voxels(np.flatnonzero(label), foreground.MOST))
    np.testing.assert_array_equal(np.ravel_multi_index(tuple(voxels.T), label.shape), expected)
