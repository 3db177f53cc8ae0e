"""Images, packed: smaller JPEGs in the folders they were in, or raw pixels that are those of the images themselves."""

import json
import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image, ImageOps

import stoker
from loader.sources import photo
from stoker import errors
from stoker.commands.pack import pack
from stoker.loader.front import Loader
from stoker.loader.source.images import ImageSource
from stoker.loader.source.shrink import smaller
from stoker.pack import execute, images, plan
from stoker.pack.kinds import plan_for
from stoker.pack.plan import Options
from stoker.pack.staging import MANIFEST, verify


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes, one with a folder inside; tall, wide, small and other kinds."""
    folder = tmp_path / "photos"
    for key, data in {
        "cat/wide.jpg": photo(1, 120, 200, quality=92),
        "cat/deep/tall.jpeg": photo(2, 150, 90, quality=92),
        "cat/small.jpg": photo(3, 30, 44, quality=92),
        "dog/wide.png": photo(4, 120, 200, "PNG"),
        "dog/wide.jpg": photo(5, 128, 160, quality=92),
        "dog/flat.webp": photo(6, 64, 500, "WEBP", lossless=True),
    }.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(data)
    return folder


def sizes(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            with Image.open(path) as image:
                assert image.format == "JPEG"
                found[path.relative_to(folder).as_posix()] = (image.height, image.width)
    return found


def run(source: Path, destination: Path, **options: Any) -> plan.Plan:
    what = plan_for([str(source)], Options(**options))
    assert execute.run(what, destination, memory_bytes=2 << 30)
    verify(destination, lambda _: None)
    return what


def test_the_shorter_side_gets_the_size_and_folders_labels_and_small_images_stay(photos: Path, tmp_path: Path) -> None:
    run(photos, tmp_path / "dst", size=(64,))
    assert sizes(tmp_path / "dst") == {
        "cat/deep/tall.jpeg": (107, 64),
        "cat/small.jpg": (30, 44),
        "cat/wide.jpg": (64, 107),
        "dog/flat.webp.jpg": (64, 500),
        "dog/wide.jpg": (64, 80),
        "dog/wide.png.jpg": (64, 107),
    }
    assert (tmp_path / "dst/cat/small.jpg").read_bytes() == (photos / "cat/small.jpg").read_bytes()
    before, after = (stoker.open(folder, size=(32, 32)) for folder in (photos, tmp_path / "dst"))
    assert isinstance(before, ImageSource)
    assert isinstance(after, ImageSource)
    assert after.classes == before.classes == ("cat", "dog")
    pairs = [next(iter(Loader(source, 6))) for source in (before, after)]
    assert pairs[0]["label"].tolist() == pairs[1]["label"].tolist()
    # Encoded once more, and resized in two steps: alike to the eye, which a wrong crop or channel order would not be.
    apart = np.abs(pairs[0]["image"].numpy().astype(int) - pairs[1]["image"].numpy())
    assert apart.mean() < 3
    assert np.quantile(apart, 0.99) < 16


def test_raw_pixels_are_those_that_the_images_give_and_are_mapped(photos: Path, tmp_path: Path) -> None:
    run(photos, tmp_path / "dst", size=(24, 40), raw=True, shard_bytes=6000)
    assert len(list((tmp_path / "dst").glob("images-*.npy"))) == 3
    with Loader(stoker.open(photos, size=(24, 40)), 6) as images, Loader(stoker.open(tmp_path / "dst"), 6) as records:
        wanted, got = next(iter(images)), next(iter(records))
    np.testing.assert_array_equal(got["image"], wanted["image"])
    assert got["label"].tolist() == wanted["label"].tolist()
    told = json.loads((tmp_path / "dst" / MANIFEST).read_text())
    assert json.loads(told["settings"]["classes"]) == ["cat", "dog"]
    assert [one["name"] for one in told["source"]] == [Path(key).name for key in wanted["key"]]


def test_images_in_no_folder_have_no_label_and_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for number in range(3):
        (tmp_path / f"src/{number}.png").write_bytes(photo(number, 40, 40, "PNG"))
    run(tmp_path / "src", tmp_path / "jpeg", size=(20,))
    assert sizes(tmp_path / "jpeg") == {f"{number}.png.jpg": (20, 20) for number in range(3)}
    run(tmp_path / "src", tmp_path / "raw", size=(20,), raw=True)
    with Loader(stoker.open(tmp_path / "raw"), 3) as loader:
        assert next(iter(loader))["label"].tolist() == [-1, -1, -1]


@pytest.mark.parametrize(("height", "width", "side"), [(1, 5000, 3), (7, 3, 3), (4000, 3000, 256), (5, 5, 9)])
def test_an_image_never_grows_and_never_vanishes(height: int, width: int, side: int) -> None:
    found = smaller(height, width, side)
    assert 1 <= found[0] <= height
    assert 1 <= found[1] <= width
    assert min(found) == min(side, height, width)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("data", [b"", b"\xff\xd8 no image", b"GIF89a"])
@pytest.mark.parametrize("looked_at", [1, 16])  # of one it is only known when it is written
def test_what_is_no_image_is_named_and_nothing_is_left_in_its_place(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_at: int, data: bytes, raw: bool
) -> None:
    monkeypatch.setattr(images, "_LOOKED_AT", looked_at)
    (photos / "dog" / "bad.jpg").write_bytes(data)
    error, says = (
        (errors.CorruptError, "cannot be decoded as an") if data else (errors.EmptyFileError, "empty; expected an")
    )
    with pytest.raises(error, match=rf"bad\.jpg: .*{says} image"):
        run(photos, tmp_path / "dst", size=(16,), raw=raw)
    assert not (tmp_path / "dst").exists()


def test_two_images_never_become_one(photos: Path) -> None:
    (photos / "dog" / "wide.png.jpg").write_bytes(photo(8, 40, 40))
    with pytest.raises(errors.UsageError, match=r"two images would become dog/wide\.png\.jpg"):
        plan_for([str(photos)], Options(size=(16,)))
    assert len(plan_for([str(photos)], Options(size=(16,), raw=True)).files) == 7


def test_a_missing_extra_is_named(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(images, "version", gone)
    with pytest.raises(errors.MissingExtraError, match=r"stoker\[images\]"):
        plan_for([str(photos)], Options(size=(16,)))


def test_a_plan_that_leads_out_of_its_folder_is_refused(photos: Path, tmp_path: Path) -> None:
    what = json.loads(plan.to_json(plan_for([str(photos)], Options(size=(16,)))))
    (tmp_path / "secret.jpg").write_bytes(photo(7, 20, 20))
    for name, path in {"one": f"{photos}/cat/../../secret.jpg", "two": str(tmp_path / "secret.jpg")}.items():
        what["files"][0] |= {"path": path, "stamp": plan.stamp(path)}
        with pytest.raises(errors.UsageError, match="is not below"):
            execute.run(plan.from_json(json.dumps(what), "here"), tmp_path / name, memory_bytes=2 << 30)
        assert not (tmp_path / name).exists()


def test_the_command_says_what_it_will_do_and_does_it(photos: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(pack, [str(photos), str(tmp_path / "dst"), "--size", "48", "--memory", "2GiB"])
    assert done.exit_code == 0, done.output
    assert "6 files" in done.output
    assert "2 folders and files of JPEGs" in done.output
    assert sizes(tmp_path / "dst")["cat/wide.jpg"] == (48, 80)
    worse = CliRunner().invoke(pack, [str(photos), str(tmp_path / "low"), "--size", "48", "--quality", "20"])
    assert worse.exit_code == 0, worse.output
    assert (tmp_path / "low/cat/wide.jpg").stat().st_size < (tmp_path / "dst/cat/wide.jpg").stat().st_size


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_what_is_encoded_anew_stands_upright_as_before(tmp_path: Path, form: str) -> None:
    turned = Image.Exif()
    turned[0x0112], turned[0x010E] = 6, "x" * 5000
    (tmp_path / "photos").mkdir()
    for name, size in (("large", (400, 300)), ("small", (40, 30))):
        Image.new("RGB", size).save(tmp_path / "photos" / f"{name}.jpg", form, exif=turned)
    run(tmp_path / "photos", tmp_path / "out", size=(64,))
    for path in (tmp_path / "out").glob("*.jpg"):
        with Image.open(path) as image:
            width, height = ImageOps.exif_transpose(image).size
            assert (image.getexif()[0x0112], width < height) == (6, True)
    assert (tmp_path / "out" / "large.jpg").stat().st_size < 2000


def test_a_link_to_an_image_that_was_not_fetched_is_named(photos: Path) -> None:
    (photos / "gone.jpg").symlink_to("/annex/objects/gone")
    with pytest.raises(errors.VanishedError, match=r"gone\.jpg: is a link to /annex/objects/gone, which is not there"):
        plan_for([str(photos)], Options(size=(64,)))


def test_a_class_may_be_called_as_unfinished_work_was(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "src")
    top = min(one for one in (tmp_path / "src").iterdir() if one.is_dir())
    shutil.copytree(top, tmp_path / "src" / f"{top.name}.partial")
    execute.run(plan_for([str(tmp_path / "src")], Options(size=(16,))), tmp_path / "out", threads=1)
    verify(tmp_path / "out", lambda _: None)
    folders = [
        sorted(one.name for one in (tmp_path / "out" / name).rglob("*")) for name in (top.name, f"{top.name}.partial")
    ]
    assert folders[0] == folders[1] != []


def test_a_class_that_is_called_as_the_manifest_is_refused(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "src" / "manifest.json")
    with pytest.raises(
        errors.UsageError, match=r"a class is called manifest\.json, as the list .* give it another name"
    ):
        plan_for([str(tmp_path / "src")], Options(size=(16,)))
    assert plan_for([str(tmp_path / "src")], Options(size=(16,), raw=True)).rows
