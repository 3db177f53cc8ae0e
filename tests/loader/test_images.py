"""Images: formats, crops, labels, and numbers that follow from (seed, epoch, row) alone."""

import io
import itertools
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import stoker
from loader.sources import SIDE, check, pictures, png
from stoker import errors
from stoker.loader.front import Loader
from stoker.loader.source import augment
from stoker.loader.source.decode import Decoder, Strip
from stoker.loader.source.image_reader import pieces
from stoker.loader.source.interface import Place
from stoker.loader.source.open_images import open_images


def smooth(height: int, width: int) -> np.ndarray:
    """A picture without sharp edges, so that every decoder and resize gives nearly the same."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    return (np.stack([y, x, (x + y) / 2], -1) * 200 + 20).astype(np.uint8)


def encoded(image: np.ndarray, kind: str, **how: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind, **how)
    return file.getvalue()


def decode(data: bytes, size: tuple[int, int], **how: Any) -> np.ndarray:
    out = torch.empty((1, 3, *size), dtype=torch.uint8)
    numbers = augment.draw(Place(how.pop("seed", 0)), np.array([how.pop("row", 0)]))
    decoder = Decoder(size, how.pop("crop", None), how.pop("flip", False))
    decoder.place(out, decoder.part(data, numbers[0], lambda: "x")[None], list(numbers))
    return out[0].permute(1, 2, 0).numpy()


def close(one: np.ndarray, two: np.ndarray) -> bool:
    return bool(np.abs(one.astype(int) - two.astype(int)).mean() < 2.5)


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
@pytest.mark.parametrize("size", [(30, 40), (64, 64), (120, 160), (200, 100)])
def test_every_format_becomes_what_a_plain_resize_gives(kind: str, size: tuple[int, int]) -> None:
    image = smooth(120, 160)
    expected = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR))
    assert close(decode(encoded(image, kind), size), expected)


def test_a_jpeg_is_decoded_smaller_where_that_is_faster_and_looks_the_same() -> None:
    image = smooth(480, 640)
    data = simplejpeg.encode_jpeg(image, quality=95)
    for size in ((60, 80), (100, 100), (239, 319), (240, 320)):
        expected = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR))
        assert close(decode(data, size), expected)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK", "I;16"])
def test_other_pixels_than_rgb_become_rgb(mode: str) -> None:
    image = Image.fromarray(smooth(32, 32))
    converted = Image.fromarray(np.full((32, 32), 9, np.uint16)) if mode == "I;16" else image.convert(mode)
    file = io.BytesIO()
    converted.save(file, "jpeg" if mode == "CMYK" else "png")
    found = decode(file.getvalue(), (16, 16))
    assert found.shape == (16, 16, 3)
    if mode in ("RGBA", "CMYK"):
        assert close(found, decode(encoded(smooth(32, 32), "png"), (16, 16)))


def test_a_gray_jpeg_has_three_equal_channels() -> None:
    found = decode(encoded(smooth(32, 32)[:, :, 0], "jpeg"), (16, 16))
    assert (found[:, :, 0] == found[:, :, 1]).all()
    assert (found[:, :, 0] == found[:, :, 2]).all()


def test_center_crop_keeps_the_aspect_and_the_middle() -> None:
    image = smooth(100, 200)
    expected = np.asarray(Image.fromarray(image[:, 50:150]).resize((50, 50), Image.Resampling.BILINEAR))
    for kind in ("png", "jpeg"):
        assert close(decode(encoded(image, kind), (50, 50), crop="center"), expected)
    assert augment.box(100, 200, (50, 25), "center", []) == (0, 75, 100, 50)


def test_random_crops_lie_inside_have_the_promised_sizes_and_differ() -> None:
    numbers = augment.draw(Place(1, 2), np.arange(500))
    boxes = [augment.box(90, 160, (64, 64), "random", n) for n in numbers]
    for top, left, height, width in boxes:
        assert 0 <= top <= top + height <= 90
        assert 0 <= left <= left + width <= 160
        assert height * width >= 0.07 * 90 * 160
        assert 0.7 < width / height < 1.4 or (height, width) == (90, 90)
    assert len(set(boxes)) > 450
    assert 0.4 < np.mean([augment.is_mirrored(n) for n in numbers]) < 0.6


def test_numbers_follow_from_seed_epoch_and_row_whatever_the_batch() -> None:
    rows = np.arange(1000)
    whole = augment.draw(Place(5, 6, 7), rows)
    np.testing.assert_array_equal(whole[[3, 999]], augment.draw(Place(5, 6, 0), np.array([3, 999])))
    for other in (Place(5, 7), Place(6, 6)):
        assert (augment.draw(other, rows) != whole).mean() > 0.99
    assert 0.49 < whole.mean() < 0.51
    assert len(np.unique(whole)) > 0.999 * whole.size


@pytest.mark.parametrize("crop", [None, "center", "random"])
def test_images_that_are_resized_together_are_as_if_they_were_alone(crop: Any) -> None:
    sides = [(64, 48)] * 50 + [(20, 30)] * 3 + [(64, 48), (400, 500), (64, 48), (64, 48), (24, 24), (24, 24)]
    random = np.random.default_rng(0)
    images = [random.integers(0, 256, (*side, 3), dtype=np.uint8) for side in sides]
    data = [encoded(image, "png" if at % 3 else "jpeg") for at, image in enumerate(images)]
    numbers = augment.draw(Place(3), np.arange(len(data)))
    decoder = Decoder((24, 24), crop, flip=True)
    out = torch.zeros((len(data), 3, 24, 24), dtype=torch.uint8)
    strip = Strip(decoder, out)
    lacking = {7, 51, len(data) - 2}
    for at, body in enumerate(data):
        if at not in lacking:
            strip.add(at, decoder.part(body, numbers[at], str), numbers[at])
    strip.flush()
    for at, body in enumerate(data):
        alone = decode(body, (24, 24), crop=crop, flip=True, seed=3, row=at)
        expected = np.zeros_like(alone) if at in lacking else alone
        assert np.array_equal(out[at].permute(1, 2, 0).numpy(), expected), at


@given(st.lists(st.integers(0, 200_000), max_size=200), st.integers(1, 8))
def test_a_batch_is_cut_into_pieces_that_keep_all_threads_busy(sizes: list[int], threads: int) -> None:
    cuts = pieces(np.array(sizes, np.int64), threads)
    assert cuts[0] == 0
    assert cuts[-1] == len(sizes)
    assert all(
        stop - start == 1 or (stop - start <= max(1, len(sizes) // (2 * threads)) and sum(sizes[start:stop]) <= 1 << 16)
        for start, stop in itertools.pairwise(cuts)
    )


def test_augmented_epochs_differ_and_repeat_on_any_number_of_threads_ranks_and_batch_sizes(tmp_path: Path) -> None:
    for number in range(40):
        folder = tmp_path / f"c{number % 3}"
        folder.mkdir(exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 255, (40, 50, 3), np.uint8)
        (folder / f"{number:03}.jpg").write_bytes(simplejpeg.encode_jpeg(noise))
    data = stoker.open(tmp_path, size=(16, 16), crop="random", flip=True)

    def epochs(batch_size: int, threads: int, world: int = 1) -> list[dict[str, torch.Tensor]]:
        found: list[dict[str, torch.Tensor]] = [{}, {}]
        for rank in range(world):
            with Loader(data, batch_size, True, seed=4, threads=threads, rank=rank, world_size=world) as loader:
                for epoch in found:
                    for batch in loader:
                        epoch |= dict(zip(batch["key"], batch["image"].clone(), strict=True))
        return found

    first = epochs(7, 2)
    assert sum(torch.equal(first[0][key], first[1][key]) for key in first[0]) < 3
    for how in ((1, 0), (16, 4), (5, 1, 2)):
        for one, two in zip(first, epochs(*how), strict=True):
            assert one.keys() == two.keys()
            assert all(torch.equal(one[key], two[key]) for key in one)


def test_labels_are_the_sorted_directories_and_images_in_none_have_minus_one(tmp_path: Path) -> None:
    for key in ("b/1.png", "a/deep/2.png", "c/3.png", "0.png"):
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(png(1))
    (tmp_path / "a" / "notes.txt").write_text("no image")
    source: Any = stoker.open(tmp_path, size=SIDE)
    assert source.classes == ("a", "b", "c")
    with Loader(source, 8) as loader:
        batch = next(iter(loader))
    assert dict(zip(batch["key"], batch["label"].tolist(), strict=True)) == {
        "0.png": -1,
        "a/deep/2.png": 0,
        "b/1.png": 1,
        "c/3.png": 2,
    }
    assert batch["label"].dtype == torch.int64
    assert batch["image"].dtype == torch.uint8


@pytest.mark.parametrize("kind", ["csv", "parquet", "dict"])
def test_labels_come_from_a_table_which_also_chooses_the_images(tmp_path: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    pictures(tmp_path / "data", [3, 3])
    wanted = {"c001/00004.png": "dog", "c000/00000.png": "cat", "c000/00002.png": "dog"}
    table = pa.table({"key": list(wanted), "label": list(wanted.values())})
    path = tmp_path / f"labels.{kind}"
    if kind == "csv":
        pyarrow.csv.write_csv(table, path)
    elif kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    source: Any = stoker.open(tmp_path / "data", size=SIDE, labels=wanted if kind == "dict" else path)
    assert source.classes == ("cat", "dog")
    with Loader(source, 8) as loader:
        batch = next(iter(loader))
    assert batch["key"] == ["c000/00000.png", "c000/00002.png", "c001/00004.png"]
    assert batch["label"].tolist() == [0, 1, 1]


def test_wrong_tables_are_refused(tmp_path: Path) -> None:
    pictures(tmp_path / "data", [3])
    (tmp_path / "bad.csv").write_text("file,class\na,b\n")
    for labels, said in (
        ({"c000/00000.png": 1.5}, "expected whole numbers or text"),
        ({"c000/nope.png": 1}, r"1 keys of labels are not below .*; the first is c000/nope\.png"),
        (tmp_path / "none.csv", "which is not there"),
        (tmp_path / "bad.csv", "has the columns file, class; expected key and label"),
        (tmp_path / "data" / "c000" / "00000.png", r"expected a \.csv or \.parquet"),
    ):
        with pytest.raises(errors.UsageError, match=said):
            stoker.open(tmp_path / "data", size=SIDE, labels=labels)


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    pictures(tmp_path, [3])
    for how, said in (
        ({}, r"size is needed to open images: size=\(224, 224\)"),
        ({"size": (0, 5)}, r"size is \(0, 5\)"),
        ({"size": "big"}, "size is 'big'"),
        ({"size": 8, "crop": "left"}, "crop is 'left'; expected None, 'center' or 'random'"),
        ({"size": 8, "cache_bytes": "1GB"}, "cache_bytes needs cache"),
        ({"size": 8, "cache": tmp_path / "c", "cache_bytes": "much"}, "cache_bytes is 'much'"),
        ({"size": 8, "requests": 0}, "requests is 0"),
        ({"size": 8, "timeout_s": 0}, "timeout_s is 0"),
        ({"size": 8, "retries": -1}, "retries is -1"),
        ({"size": 8, "colour": True}, "colour is not an argument for images; expected size, crop"),
    ):
        with pytest.raises(errors.UsageError, match=said):
            stoker.open(tmp_path, **how)
    with pytest.raises(errors.UsageError, match=r"has the scheme ftp://; expected s3://"):
        stoker.open("ftp://host/x", size=8)
    with pytest.raises(errors.NoDataError, match="no such folder"):
        stoker.open("file:///no/such/folder", size=8, cache=tmp_path / "c")


def test_a_local_folder_can_have_a_cache_too_and_the_state_fits_both(tmp_path: Path) -> None:
    pictures(tmp_path / "slow mount", [9, 4])
    plain = stoker.open(f"file://{tmp_path}/slow mount", size=SIDE)
    cached = stoker.open(tmp_path / "slow mount", size=SIDE, cache=tmp_path / "cache")
    with Loader(plain, 4, True) as one, Loader(cached, 4, True) as two:
        begun = [check(batch) for batch in itertools.islice(one, 2)]
        two.load_state_dict(one.state_dict())
        rest = [check(batch) for batch in two]
    assert sorted(itertools.chain(*begun, *rest)) == list(range(13))


def test_bad_local_files_are_named_or_skipped(tmp_path: Path) -> None:
    pictures(tmp_path, [20])
    source = stoker.open(tmp_path, size=SIDE)
    (tmp_path / "c000" / "00003.png").unlink()
    (tmp_path / "c000" / "00004.png").write_bytes(b"")
    (tmp_path / "c000" / "00005.png").write_bytes(png(5)[:-20])
    (tmp_path / "c000" / "00006.png").write_bytes(bytes(len(png(6))))
    expected = {3: errors.VanishedError, 4: errors.EmptyFileError, 5: errors.TruncatedError, 6: errors.CorruptError}
    with Loader(source, 1, threads=2) as loader:
        loader.load_state_dict(loader.state_dict() | {"position": 3})
        for number, kind in expected.items():
            loader.load_state_dict(loader.state_dict() | {"position": number})
            with pytest.raises(kind, match=f"0000{number}.png"):
                next(iter(loader))
    with Loader(source, 4, on_error="skip") as loader:
        assert [i for batch in loader for i in check(batch)] == [i for i in range(20) if i not in expected]
        assert loader.stats().skipped_rows == 4


def test_a_jpeg_cut_short_or_of_absurd_size_is_corrupt() -> None:
    data = simplejpeg.encode_jpeg(smooth(64, 64))
    for bad in (data[: len(data) // 2], data[:3], b"\xff\xd8" + bytes(100)):
        with pytest.raises(errors.CorruptError, match="cannot be decoded"):
            decode(bad, (8, 8))
    header = data.index(b"\xff\xc0") + 5
    huge = data[:header] + b"\xff\xdc\xff\xdc" + data[header + 4 :]
    with pytest.raises(errors.CorruptError, match="pixels"):
        decode(huge, (8, 8))


def names(source: Any) -> tuple[list[str], tuple[str, ...]]:
    return [source.manifest.key(row) for row in range(len(source))], source.classes


def test_folders_behind_links_count_with_and_without_a_cache_and_loops_end(tmp_path: Path) -> None:
    for folder in ("train/dog", "elsewhere/deep"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "1.png").write_bytes(png(1))
    (tmp_path / "train" / "cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "train" / "wolf").symlink_to(tmp_path / "train" / "dog")
    expected = ["cat/deep/1.png", "dog/1.png", "wolf/1.png"], ("cat", "dog", "wolf")
    assert names(stoker.open(tmp_path / "train", size=8, cache=tmp_path / "cache")) == expected
    (tmp_path / "elsewhere" / "loop").symlink_to(tmp_path / "train")
    assert names(stoker.open(tmp_path / "train", size=8)) == expected
    assert len(stoker.open(tmp_path / "train" / "cat", size=8)) == 3  # from there it is no loop


def test_a_folder_with_images_only_behind_links_is_one_of_images(tmp_path: Path) -> None:
    pictures(tmp_path / "real", [3])
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "c000").symlink_to(tmp_path / "real" / "c000")
    with Loader(stoker.open(tmp_path / "train", size=SIDE), 3) as loader:
        assert check(next(iter(loader))) == [0, 1, 2]


def test_a_name_that_is_not_utf_8_is_named_or_skipped(tmp_path: Path) -> None:
    pictures(tmp_path, [3])
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.png")).write_bytes(png(9))
    with pytest.raises(errors.CorruptError, match=r"bad\\xff\.png: its name is not UTF-8"):
        stoker.open(tmp_path, size=SIDE)
    source = stoker.open(tmp_path, size=SIDE, on_error="skip")
    assert [Path(one.path).name for one in source.skipped] == ["bad\\xff.png"]
    with Loader(source, 4) as loader:
        assert check(next(iter(loader))) == [0, 1, 2]


@pytest.mark.parametrize("cached", [False, True])
def test_a_source_can_be_pickled_and_is_the_same_one(tmp_path: Path, cached: bool) -> None:
    pictures(tmp_path / "photos", [9])
    how: dict[str, Any] = {"cache": tmp_path / "cache", "cache_side": SIDE, "requests": 3} if cached else {}
    source = open_images(tmp_path / "photos", size=SIDE, **how)
    sources = [source, *([source.stage(4)] if cached else [])]
    for one in sources:
        again = pickle.loads(pickle.dumps(one))
        assert again.fingerprint() == one.fingerprint()
        assert (again.classes, again.skipped, again.staged) == (one.classes, one.skipped, one.staged)
        with Loader(one, 4, True) as first, Loader(again, 4, True) as second:
            for left, right in zip(first, second, strict=True):
                assert left["key"] == right["key"]
                assert torch.equal(left["image"], right["image"])


def test_a_staged_part_is_not_staged_again_also_when_pickled(tmp_path: Path) -> None:
    pictures(tmp_path / "photos", [9])
    part = open_images(tmp_path / "photos", size=SIDE, cache=tmp_path / "cache").stage(4)
    for one in (part, pickle.loads(pickle.dumps(part))):
        with pytest.raises(errors.UsageError, match="open the whole source"):
            one.stage(2)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"c000/00000.png": "a", "c000/00001.png": 1}, "the labels cannot be read .*expected text keys and labels"),
        ({"c000/00000.png": 2**63}, "the labels cannot be read"),
        ({5: 1}, "the labels cannot be read"),
    ],
)
def test_labels_that_are_no_labels_are_refused(tmp_path: Path, table: Any, says: str) -> None:
    pictures(tmp_path, [2])
    with pytest.raises(errors.UsageError, match=says):
        stoker.open(tmp_path, size=SIDE, labels=table)


def test_labels_of_a_file_that_are_too_large_are_refused(tmp_path: Path) -> None:
    pictures(tmp_path / "photos", [2])
    labels = pa.table({"key": ["c000/00000.png"], "label": pa.array([2**63], pa.uint64())})
    pq.write_table(labels, tmp_path / "labels.parquet")
    with pytest.raises(errors.UsageError, match=r"the labels of .*labels\.parquet do not fit into 64 bits with a sign"):
        stoker.open(tmp_path / "photos", size=SIDE, labels=tmp_path / "labels.parquet")


def test_a_16_bit_png_keeps_its_shades() -> None:
    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    expected = (ramp >> 8).astype(np.uint8)
    np.testing.assert_array_equal(decode(encoded(ramp, "png"), (64, 64)), np.stack([expected] * 3, -1))


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_an_image_whose_numbers_have_no_white_is_named(tmp_path: Path, dtype: Any) -> None:
    Image.fromarray(np.ones((8, 8), dtype)).save(tmp_path / "a.png", "tiff")
    with (
        Loader(stoker.open(tmp_path, size=8), 1) as loader,
        pytest.raises(errors.CorruptError, match=r"a\.png.*its pixels are of Pillow's mode (F|I), in which no number"),
    ):
        next(iter(loader))
