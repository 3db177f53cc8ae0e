"""`stoker run`: the whole training with other knobs, the script untouched."""

import hashlib
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from stoker.errors import UsageError
from stoker.knobs import find
from stoker.records.observed import Value


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--set", "settings", multiple=True, metavar="KNOB=VALUE", help="One knob, e.g. num_workers=4. Repeatable."
)
@click.option("--with", "file", type=click.Path(path_type=Path), help="A stoker.toml, as `stoker tune` writes it.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(settings: tuple[str, ...], file: Path | None, command: tuple[str, ...]) -> int:
    """Train with other knobs, without touching the script. COMMAND is how you start it, after two dashes:

    \b
        stoker run --set num_workers=4 -- python train.py --lr 0.1
        stoker run --with stoker.toml -- python train.py

    What was kept for a {placeholder} of the command goes there again; a config file is read as a changed copy.
    Stoker only sets the knobs and is then gone: process, output, signals and exit code are the script's own.
    A knob that cannot be set where it is wanted is said on stderr, and the script goes on without it.
    """  # noqa: D301  click's own mark is a backspace
    from stoker.observe.launch import prepare, resolve
    from stoker.observe.options import Options

    kept = read_settings(file) if file else Kept({}, {}, None)
    knobs = {**kept.knobs, **parse_settings(settings)}
    words = resolve(command)
    if not (knobs or kept.others or file):
        raise UsageError("no knob was given; write --set num_workers=4, or --with stoker.toml")
    if kept.others:
        words = _filled(words, kept, _place({**knobs, **kept.others}))
    options = Options(observe=False, whole=True, path_before=os.environ.get("PYTHONPATH"), knobs=knobs)
    environment = prepare(words, _place(knobs), options)
    shown = ", ".join(f"{name}={value}" for name, value in {**knobs, **kept.others}.items())
    print(f"stoker: running with {shown or 'nothing changed: no knob was kept'}", file=sys.stderr)
    sys.stdout.flush()
    os.execvpe(words[0], words, {**os.environ, **environment})  # noqa: S606  the process becomes the user's


def parse_settings(texts: Sequence[str]) -> dict[str, Value]:
    """`knob=value` as it is typed."""
    knobs: dict[str, Value] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text} has no value; write --set {text}=VALUE")
        knobs[name.strip()] = find(name.strip()).parse(value)
    return knobs


@dataclass(frozen=True, slots=True)
class Kept:
    """What a stoker.toml holds: knobs for the attach, and those of the command's places and of its config file."""

    knobs: dict[str, Value]
    others: dict[str, Value]
    config: Path | None


def read_settings(file: Path) -> Kept:
    """The settings of a stoker.toml."""
    try:
        table = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}; expected a file that `stoker tune` wrote") from error
    knobs = table.get("knobs")
    if not isinstance(knobs, dict):
        raise UsageError(f"{file} has no [knobs] table; expected lines such as num_workers = 4 below it")
    places, configs = table.get("placeholders", {}), table.get("config", {})
    if not isinstance(places, dict) or not isinstance(configs, dict) or len(configs) > 1:
        raise UsageError(f"{file} has no legal [placeholders] or [config] table; let `stoker tune` write it")
    path = next(iter(configs), None)
    keys = dict(configs[path]) if path is not None else {}
    attached = {name: find(name).check(value) for name, value in knobs.items()}
    return Kept(attached, {**places, **keys}, None if path is None else Path(path))


def _filled(words: Sequence[str], kept: Kept, place: Path) -> list[str]:
    """The command with what was kept in its places, and a changed copy of its config file."""
    from stoker.trial.command import Command

    command = Command(words, kept.config)
    unused = [name for name in kept.others if name not in command.placeholders and not command.has_key(name)]
    if unused:
        raise UsageError(f"{unused[0]} has no place in the command; write {{{unused[0]}}} where `stoker tune` had it")
    return list(command.with_knobs(kept.others, place).words)


def _place(knobs: Mapping[str, Value]) -> Path:
    """A directory for these knobs; the same knobs have the same one, so that runs leave nothing behind."""
    name = hashlib.sha256(repr(sorted(knobs.items())).encode()).hexdigest()[:12]
    place = Path(".stoker").resolve() / "settings" / name
    place.mkdir(parents=True, exist_ok=True)
    return place
