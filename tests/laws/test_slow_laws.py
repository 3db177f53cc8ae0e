"""The laws of loading over sources with a file, or a request, for each row: the same laws, fewer examples."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laws import test_loader_laws as laws
from loader.sources import SLOW, stop_store

LAWS: dict[str, Callable[..., None]] = {
    name: test.hypothesis.inner_test for name, test in vars(laws).items() if hasattr(test, "hypothesis")
}
DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "sizes": st.lists(st.integers(1, 12), min_size=1, max_size=3),
    "batch_size": laws.batch_sizes,
    "window": laws.windows,
    "world": st.integers(1, 3),
    "worlds": st.tuples(st.integers(1, 3), st.integers(1, 3)),
    "seed": st.integers(0, 9),
    "shuffle": st.booleans(),
    "stop": st.integers(0, 12),
    "epoch": st.integers(0, 3),
    "first": st.data(),
}


@pytest.fixture(scope="module", autouse=True)
def no_store_left() -> Iterator[None]:
    yield
    stop_store()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLOW)
@pytest.mark.parametrize("law", LAWS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_law(law: str, kind: str, data: st.DataObject) -> None:
    wanted = [name for name in inspect.signature(LAWS[law]).parameters if name != "kind"]
    LAWS[law](kind=kind, **{name: data.draw(DRAWN[name], name) for name in wanted})
