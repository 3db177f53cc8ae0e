"""TraceML's lines are written into the planted scripts where its documentation wants them."""

import ast
import sys
from pathlib import Path

import pytest

from planted import suite

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import traced


@pytest.mark.parametrize("planted", suite.PLANTED, ids=lambda planted: planted.cause)
def test_a_step_is_traced_once_and_all_of_it(planted: suite.Planted) -> None:
    for which in ("slow", "healthy"):
        tree = ast.parse(traced.write_in(planted.script(which).read_text()))
        traced_steps = [
            node for node in ast.walk(tree) if isinstance(node, ast.With) and "trace_step" in ast.dump(node)
        ]
        inner = min(traced_steps, key=lambda node: sum(1 for _ in ast.walk(node)))
        assert ast.unparse(inner).count(".backward(") == 1
        assert ast.unparse(inner).count(".step()") >= 1
        assert ast.unparse(tree).count("traceml.trace_step(") == 1
