"""Images, to smaller JPEGs in the same folders, or to raw pixels in `.npy` records."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stoker.errors import MissingExtraError, NoDataError, UsageError
from stoker.loader.source.labels import NONE, from_directories
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.open_images import SUFFIXES, list_folder
from stoker.pack import keys
from stoker.pack.hashing import Hashing
from stoker.pack.plan import VERSION, Options, Output, Plan, SourceFile, count_for, split, stamp
from stoker.pack.spill import steps
from stoker.pack.staging import MANIFEST

_LOOKED_AT = 16
"""Images whose size is read before a plan is made: the largest files, for what memory they need, and some others."""
_COPIES = 4
"""Of the largest image's pixels: decoded, resized, encoded, and what lies between."""
_DENSITY = 0.35
"""A guess of the bytes a JPEG takes for a pixel; only the estimate depends on it."""


def make_plan(files: Sequence[str], options: Options) -> Plan:
    """A folder for each class, or shards of records with `image` and `label`."""
    writer = f"simplejpeg {_installed()}, torch {torch.__version__}"
    root, manifest = _listed(files)
    side = _side(options)
    if options.compress:
        raise UsageError("JPEGs are compressed, and records are mapped as they lie; leave --compress out")
    if options.shuffle and not options.raw:
        raise UsageError("images in folders are shuffled when they are loaded; leave --shuffle out, or add --raw")
    rows = np.arange(len(manifest))
    if options.shuffle:
        rows = np.argsort(keys.keys(options.seed, 0, len(manifest)), kind="stable")
    names = [manifest.key(row) for row in rows.tolist()]
    sizes = manifest.sizes[rows].tolist()
    row_bytes = float(_dtype(side).itemsize) if options.raw else _jpeg_bytes(root, names, side[0])
    return Plan(
        version=VERSION,
        kind="images",
        files=tuple(_file(root, name, size) for name, size in zip(names, sizes, strict=True)),
        rows=len(names),
        row_bytes=row_bytes,
        seed=options.seed if options.shuffle else None,
        settings={
            "root": str(root),
            "size": ",".join(map(str, side)),
            "raw": options.raw,
            "quality": options.quality,
            "classes": json.dumps(from_directories(manifest)[1]),
            "largest_bytes": _largest_bytes(root, manifest),
        },
        pieces=(),
        outputs=tuple(_shards(len(names), row_bytes, options) if options.raw else _folders(names, row_bytes)),
        writer=writer,
    )


def _listed(files: Sequence[str]) -> tuple[Path, Manifest]:
    if len(files) > 1 or not Path(files[0]).is_dir():
        raise UsageError("images are packed by the folder that holds their classes; name one folder")
    manifest = list_folder(Path(files[0]))
    if not len(manifest):
        raise NoDataError(f"no image is below {files[0]}; expected {', '.join(SUFFIXES)}")
    return Path(files[0]).resolve(), manifest


def _side(options: Options) -> tuple[int, ...]:
    side = options.size or ()
    if options.raw and len(side) == 1:
        side = (*side, *side)
    if len(side) != (2 if options.raw else 1):
        expected = "one number, or height,width" if options.raw else "one number, the shorter side"
        raise UsageError(f"--size is {','.join(map(str, side))}; expected {expected}")
    return side


def _file(root: Path, key: str, size: int) -> SourceFile:
    path = str(root / key)  # not resolved: a link's own place says its class
    return SourceFile(path, size, 1, stamp(path))


def _shards(rows: int, row_bytes: float, options: Options) -> Iterator[Output]:
    count = min(rows, count_for(rows * row_bytes, min(options.shard_bytes, options.memory_bytes // 8)))
    for number, (start, stop) in enumerate(split(rows, count)):
        yield Output(f"images-{number:05}-of-{count:05}.npy", start, stop, int(128 + (stop - start) * row_bytes))


def _folders(names: Sequence[str], row_bytes: float) -> Iterator[Output]:
    """An output for each first directory; an image in none is an output of its own."""
    twice = [name for name, count in Counter(map(_renamed, names)).items() if count > 1]
    if twice:
        raise UsageError(f"two images would become {twice[0]}; rename one of them")
    start = 0
    for top, group in groupby(names, key=lambda name: name.partition("/")[0]):
        count = len(list(group))
        name = top if "/" in names[start] else _renamed(top)
        if name.startswith("."):
            raise UsageError(f"{name} is hidden; move it away, or give it another name")
        if name == MANIFEST:
            raise UsageError(f"a class is called {name}, as the list of what was packed is; give it another name")
        yield Output(name, start, start + count, int(count * row_bytes))
        start += count


def _renamed(name: str) -> str:
    """What an image's file is called as a JPEG: another kind keeps its suffix, so that no two become one."""
    return name if name.lower().endswith((".jpg", ".jpeg")) else f"{name}.jpg"


def _installed() -> str:
    try:
        return version("simplejpeg")
    except PackageNotFoundError as error:
        raise MissingExtraError("simplejpeg", "images") from error


def _dtype(size: tuple[int, ...]) -> np.dtype[Any]:
    return np.dtype([("image", "u1", (3, *size)), ("label", "<i8")])


def _jpeg_bytes(root: Path, names: Sequence[str], side: int) -> float:
    """About what an image takes when it is smaller."""
    from stoker.loader.source.decode import shape
    from stoker.loader.source.shrink import smaller

    some = [names[at] for at in np.linspace(0, len(names) - 1, min(_LOOKED_AT, len(names))).astype(int).tolist()]
    pixels = [np.prod(smaller(*shape((root / name).read_bytes(), str(root / name)), side)) for name in some]
    return float(np.mean(pixels)) * _DENSITY


def _largest_bytes(root: Path, manifest: Manifest) -> int:
    """Memory for the pixels of the largest image, as far as file sizes tell which ones are large."""
    from stoker.loader.source.decode import shape

    largest = [str(root / manifest.key(row)) for row in np.argsort(manifest.sizes)[-_LOOKED_AT:].tolist()]
    return max(3 * height * width for height, width in (shape(Path(path).read_bytes(), path) for path in largest))


def need_bytes(plan: Plan) -> int:
    """The most memory that one piece of work takes."""
    return _COPIES * int(plan.settings["largest_bytes"] or 0) + (1 << 24)


def spill(plan: Plan, number: int, folder: Path | None) -> None:
    """A shuffled order is settled in the plan."""


def saved(plan: Plan, folder: Path) -> None:
    """A shuffled order is settled in the plan."""


def write(plan: Plan, number: int, place: Path, spills: Sequence[Any]) -> tuple[int, str | None]:  # noqa: ARG001
    """Write a shard, or the folder of a class; returns its images and, of a shard, its SHA-256."""
    from stoker.loader.source.shrink import shrunk

    output = plan.outputs[number]
    if plan.settings["raw"]:
        return output.stop - output.start, _write_raw(plan, output, place)
    side, quality = int(str(plan.settings["size"])), int(plan.settings["quality"] or 0)
    for file in plan.files[output.start : output.stop]:
        inside = _below(plan, file.path)[1:]
        target = place.joinpath(*inside[:-1], _renamed(inside[-1])) if inside else place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(shrunk(Path(file.path).read_bytes(), side, file.path, quality))
    return output.stop - output.start, None


def _below(plan: Plan, path: str) -> tuple[str, ...]:
    """The parts of an image's key; a plan is what a file says, so it may name what it should not."""
    root, at = Path(str(plan.settings["root"])), Path(path)
    if ".." in at.parts or root not in at.parents:
        raise UsageError(f"the plan names {path}, which is not below {root}; make a new plan")
    return at.relative_to(root).parts


def _write_raw(plan: Plan, output: Output, place: Path) -> str:
    from stoker.loader.source.decode import Decoder

    height, width = (int(side) for side in str(plan.settings["size"]).split(","))
    decoder, dtype = Decoder((height, width), None, flip=False), _dtype((height, width))
    numbers = {name: number for number, name in enumerate(json.loads(str(plan.settings["classes"])))}
    files = plan.files[output.start : output.stop]
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (len(files),)}
    with place.open("wb") as plain:
        file = Hashing(plain)
        np.lib.format.write_array_header_1_0(file, header)
        for part in steps(len(files), dtype.itemsize):
            some = np.empty(part.stop - part.start, dtype)
            images = torch.from_numpy(some["image"])
            for at, source in enumerate(files[part]):
                pixels = decoder.part(Path(source.path).read_bytes(), None, partial(str, source.path))
                decoder.place(images[at : at + 1], pixels[None], (None,))
                top, *rest = _below(plan, source.path)
                some["label"][at] = numbers[top] if rest else NONE
            file.write(some.tobytes())
    return file.hashed.hexdigest()
