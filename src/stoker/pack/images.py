"""Images, to smaller JPEGs in the same folders, or to raw pixels in `.npy` records."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from stoker.errors import MissingExtraError, NoDataError, UsageError
from stoker.loader.source.labels import NONE, from_directories
from stoker.loader.source.manifest import Manifest
from stoker.loader.source.open_images import SUFFIXES, list_folder
from stoker.pack import keys
from stoker.pack.found import Found
from stoker.pack.hashing import Hashing
from stoker.pack.in_store import InStore
from stoker.pack.plan import VERSION, Options, Output, Plan, SourceFile, count_for, split, stamp
from stoker.pack.sources import HERE, Sources
from stoker.pack.spill import steps
from stoker.pack.staging import MANIFEST

_LOOKED_AT = 16
"""Images whose size is read before a plan is made: the largest files, for what memory they need, and some others."""
_COPIES = 4
"""Of the largest image's pixels: decoded, resized, encoded, and what lies between."""
_DENSITY = 0.35
"""A guess of the bytes a JPEG takes for a pixel; only the estimate depends on it."""


def make_plan(found: Found, options: Options) -> Plan:
    """A folder for each class, or shards of records with `image` and `label`."""
    writer = f"simplejpeg {_installed()}, torch {torch.__version__}"
    images = _listed(found)
    root, manifest = images.root, images.manifest
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
    row_bytes = float(_dtype(side).itemsize) if options.raw else _jpeg_bytes(images, names, side[0])
    return Plan(
        version=VERSION,
        kind="images",
        files=tuple(images.file(name, size) for name, size in zip(names, sizes, strict=True)),
        rows=len(names),
        row_bytes=row_bytes,
        seed=options.seed if options.shuffle else None,
        settings={
            "root": root,
            "size": ",".join(map(str, side)),
            "raw": options.raw,
            "quality": options.quality,
            "classes": json.dumps(from_directories(manifest)[1]),
            "largest_bytes": _largest_bytes(images),
        },
        pieces=(),
        outputs=tuple(_shards(len(names), row_bytes, options) if options.raw else _folders(names, row_bytes)),
        writer=writer,
    )


class _Images:
    """Images below a folder of this machine, or an address."""

    def __init__(self, found: Found, root: str, manifest: Manifest) -> None:
        self._found, self.root, self.manifest = found, root, manifest

    def path(self, key: str) -> str:
        """Not resolved: a link's own place says its class."""
        return f"{self.root.rstrip('/')}/{key}"

    def file(self, key: str, size: int) -> SourceFile:
        """One as it is now."""
        path = self.path(key)
        return self._found.file(path, 1) if "://" in path else SourceFile(path, size, 1, stamp(path))

    def shapes(self, keys: Sequence[str]) -> list[tuple[int, int]]:
        """The height and width of some."""
        from stoker.loader.source.decode import shape

        paths = [self.path(key) for key in keys]
        return [shape(data, path) for data, path in zip(self._found.read(paths), paths, strict=True)]


def _listed(found: Found) -> _Images:
    if isinstance(found, InStore):
        root = found.listed.url.rstrip("/")
        for row in range(len(found.listed)):
            _parts(root, found.listed.address(row))
        return _Images(found, root, found.listed)
    folder = Path(found.names[0])
    if len(found.names) > 1 or not folder.is_dir():
        raise UsageError("images are packed by the folder that holds their classes; name one folder")
    manifest = list_folder(folder)
    if not len(manifest):
        raise NoDataError(f"no image is below {folder}; expected {', '.join(SUFFIXES)}")
    return _Images(found, str(folder.resolve()), manifest)


def _side(options: Options) -> tuple[int, ...]:
    side = options.size or ()
    if options.raw and len(side) == 1:
        side = (*side, *side)
    if len(side) != (2 if options.raw else 1):
        expected = "one number, or height,width" if options.raw else "one number, the shorter side"
        raise UsageError(f"--size is {','.join(map(str, side))}; expected {expected}")
    return side


def _shards(rows: int, row_bytes: float, options: Options) -> Iterator[Output]:
    count = min(rows, count_for(rows * row_bytes, min(options.shard_bytes, options.memory_bytes // 8)))
    for number, (start, stop) in enumerate(split(rows, count)):
        yield Output(f"images-{number:05}-of-{count:05}.npy", start, stop, int(128 + (stop - start) * row_bytes))


def _folders(names: Sequence[str], row_bytes: float) -> Iterator[Output]:
    """An output for each first directory; an image in none is an output of its own."""
    twice = [name for name, count in Counter(map(_renamed, names)).items() if count > 1]
    if twice:
        raise UsageError(f"two images would become {twice[0]}; rename one of them")
    folders = {above.as_posix() for name in names for above in PurePosixPath(name).parents}
    if both := sorted(folders.intersection(map(_renamed, names))):  # a store has no folders, only names
        raise UsageError(f"{both[0]} would be an image and a folder; rename one of them")
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


def _jpeg_bytes(images: _Images, names: Sequence[str], side: int) -> float:
    """About what an image takes when it is smaller."""
    from stoker.loader.source.shrink import smaller

    some = [names[at] for at in np.linspace(0, len(names) - 1, min(_LOOKED_AT, len(names))).astype(int).tolist()]
    pixels = [np.prod(smaller(*shape, side)) for shape in images.shapes(some)]
    return float(np.mean(pixels)) * _DENSITY


def _largest_bytes(images: _Images) -> int:
    """Memory for the pixels of the largest image, as far as file sizes tell which ones are large."""
    largest = np.argsort(images.manifest.sizes)[-_LOOKED_AT:].tolist()
    return max(3 * height * width for height, width in images.shapes([images.manifest.key(row) for row in largest]))


def need_bytes(plan: Plan) -> int:
    """The most memory that one piece of work takes."""
    return _COPIES * int(plan.settings["largest_bytes"] or 0) + (1 << 24)


def spill(plan: Plan, number: int, folder: Path | None, sources: Sources = HERE) -> None:
    """A shuffled order is settled in the plan."""


def saved(plan: Plan, folder: Path) -> None:
    """A shuffled order is settled in the plan."""


def write(
    plan: Plan,
    number: int,
    place: Path,
    spills: Sequence[Any],  # noqa: ARG001  every layout has this signature
    sources: Sources = HERE,
) -> tuple[int, str | None]:
    """Write a shard, or the folder of a class; returns its images and, of a shard, its SHA-256."""
    from stoker.loader.source.shrink import shrunk

    output = plan.outputs[number]
    if plan.settings["raw"]:
        return output.stop - output.start, _write_raw(plan, output, place, sources)
    side, quality = int(str(plan.settings["size"])), int(plan.settings["quality"] or 0)
    for file in plan.files[output.start : output.stop]:
        inside = _below(plan, file.path)[1:]
        target = place.joinpath(*inside[:-1], _renamed(inside[-1])) if inside else place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(shrunk(_content(file, sources), side, file.path, quality))
    return output.stop - output.start, None


def _content(file: SourceFile, sources: Sources) -> bytes:
    with sources.local(file) as path:
        return Path(path).read_bytes()


def _below(plan: Plan, path: str) -> tuple[str, ...]:
    """The parts of an image's key; a plan is what a file says, so it may name what it should not."""
    if "://" in path:
        return _parts(str(plan.settings["root"]), path)
    root, at = Path(str(plan.settings["root"])), Path(path)
    if ".." in at.parts or root not in at.parents:
        raise UsageError(f"the plan names {path}, which is not below {root}; make a new plan")
    return at.relative_to(root).parts


def _parts(root: str, address: str) -> tuple[str, ...]:
    """The parts of an object's key, which will be names of folders and of a file; a key may be anything."""
    parts = tuple(address.removeprefix(f"{root}/").split("/"))
    if not address.startswith(f"{root}/") or any(one in ("", ".", "..") or "\0" in one for one in parts):
        raise UsageError(f"{address} is not below {root}, or cannot be the name of a file; rename it")
    return parts


def _write_raw(plan: Plan, output: Output, place: Path, sources: Sources) -> str:
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
                pixels = decoder.part(_content(source, sources), None, partial(str, source.path))
                decoder.place(images[at : at + 1], pixels[None], (None,))
                top, *rest = _below(plan, source.path)
                some["label"][at] = numbers[top] if rest else NONE
            file.write(some.tobytes())
    return file.hashed.hexdigest()
