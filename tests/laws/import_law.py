"""The import law as a function, so that a test can show that it sees a broken tree."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

FOUNDATIONS = {"errors", "records", "knobs", "sizes"}
DOCTOR = ["observe", "attribute", "diagnose", "advise", "trial", "decide", "report"]
LOADER = ["source", "order", "fetch", "assemble", "deliver"]

# What stands beside the arrows, and what each may know besides the foundations.
BESIDE = {
    "": {"errors", "sim", "loader", "observe"},  # the package's lazy public names
    "__main__": {"commands"},
    "errors": set[str](),
    "records": set[str](),
    "knobs": {"errors", "records"},
    "sizes": {"errors"},
    "sim": set[str](),
    "ledger": set[str](),
    "predict": {"attribute"},
    "loader": set[str](),
    "pack": {"loader"},
    "dashboard": {"ledger", "report"},
    "integrations": {"loader", "observe"},
}


def allowed(room: str) -> set[str] | None:
    """The rooms that a room may import from; None means all of them."""
    if room == "commands":
        return None
    if room in DOCTOR:
        left = set(DOCTOR[: DOCTOR.index(room)])
        extra = {"predict"} if room in {"advise", "trial"} else {"sim"} if room == "observe" else set()
        return {room, *FOUNDATIONS, *left, *extra}
    if room not in BESIDE:
        raise AssertionError(f"src/stoker/{room} has no place in the design: add it to the import law, or move it")
    beside = BESIDE[room]
    return {room, *beside} if room in {"", *FOUNDATIONS} else {room, *FOUNDATIONS, *beside}


def modules(tree: Path) -> dict[str, Path]:
    """Each module of the package below `tree`, by its name without the leading `stoker.`."""
    found = {}
    for path in sorted(tree.rglob("*.py")):
        parts = path.relative_to(tree).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """Every name of the package that a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("stoker").lstrip(".") for alias in node.names if _ours(alias.name))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide what a module knows"
            if _ours(node.module or ""):
                base = (node.module or "").removeprefix("stoker").lstrip(".")
                yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def _ours(name: str) -> bool:
    return name == "stoker" or name.startswith("stoker.")


def _resolve(name: str, known: dict[str, Path]) -> str:
    """The module that a dotted import reaches: `loader.order.Order` is `loader.order`."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def graph(tree: Path) -> dict[str, set[str]]:
    """Module → modules it imports, lazily or not, for typing or not."""
    known = modules(tree)
    edges = {name: {_resolve(target, known) for target in imports(path)} for name, path in known.items()}
    return {name: targets - {name} for name, targets in edges.items()}


def violations(tree: Path) -> list[str]:
    """What breaks the law below `tree`, a sentence each."""
    found = []
    edges = graph(tree)
    for name, targets in edges.items():
        room = name.partition(".")[0]
        rooms = allowed(room)
        for target in targets:
            target_room = target.partition(".")[0]
            if rooms is not None and target_room not in rooms:
                found.append(f"{name or 'stoker'} imports {target or 'stoker'}")
            found += _against_the_arrow(name, target)
    # The package's own lazy names point everywhere by design; nothing else may.
    try:
        TopologicalSorter({n: t - {""} for n, t in edges.items() if n}).prepare()
    except CycleError as error:
        found.append(f"cycle: {' → '.join(error.args[1])}")
    return found


def _against_the_arrow(name: str, target: str) -> list[str]:
    """The loader's own arrow, inside its folder."""
    stages = [part.split(".")[1] for part in (name, target) if part.startswith("loader.")]
    if len(stages) < 2 or any(stage not in LOADER for stage in stages):
        return []
    here, there = (LOADER.index(stage) for stage in stages)
    return [f"{name} imports {target}, which is to its right"] if there > here else []
