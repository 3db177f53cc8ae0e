from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.cases import TINY, make_data, stop


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    stop()


@pytest.fixture(scope="session")
def data_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tiny data set of a case, made once."""
    home = tmp_path_factory.mktemp("data")

    def made(case: str) -> Path:
        if not (home / case).exists():
            done = make_data(case, home / case, "--scale", TINY)
            assert done.returncode == 0, done.stderr
        return home / case

    return made
