"""The kinds of candidates: a knob, code, a layout, Stoker's loader; with the user's own paths where they are known."""

import os

from stoker.advise.setting import Setting
from stoker.knobs import KNOBS
from stoker.records.diagnosis import Candidate, Finding, Horizon
from stoker.records.observed import Value

TEXT = ', column="text", tokenizer="tokenizer.json", length=512'
VOLUMES = ", patch=(64, 64, 64)"
KNOWN_DATA = {
    ".npy": "",
    ".parquet": "",
    ".jsonl": TEXT,
    ".txt": TEXT,
    ".tif": VOLUMES,
    ".tiff": VOLUMES,
    ".zarr": VOLUMES,
}
"""Files that `stoker.open` reads, and what it has to be told of them; the values are examples."""
IMAGES = (".jpg", ".jpeg", ".png", ".webp")
PICTURES = ", size=(224, 224)"
KEPT, TABLE = ', cache="cache"', ', labels="labels.csv"'
"""For images that come from elsewhere: kept on a local disk; and a web server cannot list what it has."""


def knob(name: str, value: Value, text: str, horizon: Horizon = "next run") -> Candidate:
    """One of Stoker's knobs, set to a value."""
    known = KNOBS[name]
    hint = f"stoker run --set {name}={value} -- …" if not isinstance(value, bool) else f"{name}={value}"
    return Candidate("knob", text, name, known.check(value), hint, known.risk, known.changes_results, horizon)


def code(text: str, hint: str, *, changes_results: bool = False, horizon: Horizon = "next run") -> Candidate:
    """A change in the user's own file."""
    return Candidate("code", text, None, None, hint, "low", changes_results, horizon)


def layout(setting: Setting, text: str, to: str, more: str = "") -> Candidate:
    """`stoker pack` for the folder of the files that were read; one that is not known has a word for it.

    A `to` that begins with a dash is added to the folder's name. Images are packed smaller, so results change.
    """
    known = [file for file in setting.files if not is_remote(file)]
    folder = _common(known) if known else "DATA"
    images = has_images(setting)
    hint = f"stoker pack {folder} {folder + to if to.startswith('-') else to}{' --size 256' if images else more}"
    return Candidate("layout", text, None, None, hint, "low", images, "production")


def stage(setting: Setting, text: str) -> Candidate:
    """A copy on a local disk: of what Stoker can fetch from where it is, or of the folder that was read."""
    found, told = source(setting.files)
    if found is None or not is_remote(found):
        return layout(setting, text, "/local/copy")
    hint = f'stoker.open("{found}"{told}).stage()'
    return Candidate("layout", text, None, None, hint, "low", False, "production")


def has_images(setting: Setting) -> bool:
    """True if images are read from files."""
    return any(file.lower().endswith(IMAGES) and not is_remote(file) for file in setting.files)


def is_remote(file: str) -> bool:
    """True for an address."""
    return "://" in file


def loader(setting: Setting) -> Candidate:
    """The two lines, with the user's own paths where they are known, and where they go."""
    found, told = source(setting.files)
    facts = setting.facts
    shuffle = facts is not None and facts.shuffled
    opened = f'+ data = stoker.open("{found}"{told})' if found else "+ data = dataset  # your own, as it is"
    workers = "" if found else f", num_workers={setting.workers}"
    line = f"+ loader = stoker.Loader(data, batch_size={setting.batch_size}, shuffle={shuffle}{workers})"
    where = f" for the loop at {facts.file}:{facts.line}" if facts is not None and facts.file else ""
    return Candidate(
        "loader", f"use Stoker's loader{where}", None, None, f"{opened}\n{line}", "medium", True, "next run"
    )


def source(files: tuple[str, ...]) -> tuple[str | None, str]:
    """A pattern for the files that were read, if they are of a kind that Stoker reads, and what else it asks."""
    for suffix, told in KNOWN_DATA.items():
        ours = [file for file in files if file.endswith(suffix) and not is_remote(file)]
        if ours:
            folder = _common(ours)
            return (f"{folder}/*{suffix}" if len(ours) > 1 else ours[0]), told
    pictures = [file for file in files if file.lower().endswith(IMAGES)]
    there = [file for file in pictures if is_remote(file)]
    if there:  # files beside them are a cache of theirs
        folder = _common(there)
        return f"{folder}/", f"{PICTURES}{KEPT}" if folder.startswith("s3:") else f"{PICTURES}{TABLE}{KEPT}"
    return (_common(pictures), PICTURES) if pictures else (None, "")


def _common(files: list[str]) -> str:
    """The folder that holds them all; one above, if each has a folder of its own."""
    scheme = f"{files[0].partition('://')[0]}://" if is_remote(files[0]) else ""
    folders = [os.path.dirname(file.removeprefix(scheme)) for file in files if file.startswith(scheme)]  # noqa: PTH120
    return scheme + os.path.commonpath(folders)


def at(finding: Finding) -> str:
    """Where in the user's code, as the end of a sentence."""
    return f" at {finding.place}" if finding.place else ""
