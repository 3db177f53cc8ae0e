"""What TraceML says of the planted scripts, with the tracing by hand that it needs.

The lines that its documentation asks for are written into a copy of each script: `traceml.init(mode="auto")` after its
imports, and `with traceml.trace_step(model):` around what is one step. `benchmarks/doctor.py peers`
holds its verdicts against the planted causes. Needs `pip install traceml-ai`, which is no dependency of ours.
"""

import ast
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from planted import suite

LONGEST_S = 240
STEPS = 150
NEAR = {
    "INPUT_BOUND": {
        *("decode-cpu", "tokenize", "collate", "ipc", "per-item-fetch", "worker-respawn", "dataset-pickle", "sampler"),
        *("shuffle-thrash", "read-amplification", "request-latency", "io-bandwidth", "cold-cache", "repeated-work"),
        *("too-few-workers", "too-many-workers", "thread-oversubscription", "shm-small", "cpu-quota"),
    },
    "COMPUTE_BOUND": {*("compute-bound", "no-mixed-precision", "padding", "launch-bound", "python-loop"), *suite.WELL},
    "BALANCED": suite.WELL,
    "INPUT_STRAGGLER": {"straggler"},
    "COMPUTE_STRAGGLER": {"straggler"},
    "STRAGGLER": {"straggler"},
    "RESIDUAL_HEAVY": {"host-sync", "logging-stall", "gc-pause", "checkpoint-stall", "validation-stall"},
}
"""What it has a word for: the planted causes that this word is at least near to. It names none of them."""


def write_in(source: str) -> str:
    """The script with TraceML's own lines in it."""
    tree = ast.parse(source)
    step, model = _step(tree), _model(tree)
    with_step = ast.parse(f"with traceml.trace_step({model}):\n    pass").body[0]
    assert isinstance(with_step, ast.With)
    with_step.body, step.body = step.body, [with_step]
    imports = [i for i, node in enumerate(tree.body) if isinstance(node, (ast.Import, ast.ImportFrom))]
    tree.body[imports[-1] + 1 : imports[-1] + 1] = ast.parse(
        "import traceml_ai as traceml\ntraceml.init(mode='auto')"
    ).body
    return ast.unparse(ast.fix_missing_locations(tree))


def _step(tree: ast.Module) -> ast.For | ast.While | ast.FunctionDef:
    """The innermost loop around the backward pass, or the function of one step that a loop calls."""
    around = [node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.While, ast.FunctionDef))]
    near = [node for node in around if _trains(node)]
    return min(near, key=lambda node: sum(1 for _ in ast.walk(node)))


def _trains(node: ast.AST) -> bool:
    calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(isinstance(call, ast.Attribute) and call.attr == "backward" for call in calls)


def _model(tree: ast.Module) -> str:
    """Whose parameters the optimizer gets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "parameters":
            return ast.unparse(node.value)
    raise LookupError("no `model.parameters()` in the script")


def summary(script: Path, arguments: list[str], cwd: Path) -> dict[str, Any] | None:
    """TraceML's own summary of a run; None if it is not installed or gave none."""
    program = shutil.which("traceml")
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as logs:
        command = [program, "run", "--mode", "summary", "--logs-dir", logs, "--run-name", "x"]
        command += ["--finalize-timeout-sec", "20", str(script), *(["--args", *arguments] if arguments else [])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=cwd, env=environment, check=False, capture_output=True, timeout=LONGEST_S)
        found: dict[str, Any] | None = None
        for path in Path(logs).rglob("final_summary.json"):
            found = json.loads(path.read_text())
        return found


def steps(found: dict[str, Any] | None) -> int | None:
    """The steps that it analysed."""
    return None if found is None else int(found["step_time"]["global"]["window"]["steps_analyzed"])


def small(only: list[str]) -> Iterator[suite.Case]:
    """The planted scripts at their small scale: all, or those of a cause, or the slow ones, or one."""
    for case in suite.cases():
        if case.scale == "small" and (not only or {case.cause, f"{case.cause}/{case.which}", case.which} & set(only)):
            yield case


def verdicts(only: list[str]) -> Iterator[dict[str, Any]]:
    """What it says of the planted scripts at their small scale, traced by hand."""
    for case in small(only):
        name = f"{case.cause}/{case.which}"
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copy(suite.HERE / "store.py", scratch)  # where the scripts look for it
            copy = Path(scratch) / "script" / "train.py"
            copy.parent.mkdir()
            copy.write_text(write_in(case.script.read_text()))
            found = summary(copy, ["--scale", "small", "--steps", str(STEPS)], Path(scratch))
        said = found["primary_diagnosis"]["kind"] if found else None
        near = said is not None and bool(NEAR.get(said, frozenset()) & case.expected)
        yield {"script": name, "TraceML": said, "steps": steps(found), "near": near}
