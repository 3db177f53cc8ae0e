from collections.abc import Callable
from pathlib import Path

import pytest

from examples.cases import TINY, make_data


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
