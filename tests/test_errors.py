"""Errors cross process boundaries whole."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from typing import NoReturn

import pytest

from stoker import errors


def fail(error: errors.StokerError) -> NoReturn:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        errors.UsageError("no"),
        errors.MissingExtraError("obstore", "s3"),
        errors.CorruptError("a.npy", "bad", 3),
        errors.TimedOutError("s3://b/k", "late"),
    ],
)
def test_an_error_is_the_same_behind_a_pickle_and_in_another_process(error: errors.StokerError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    with ProcessPoolExecutor(1) as pool, pytest.raises(type(error)) as caught:
        pool.submit(fail, error).result(timeout=100)
    assert vars(caught.value).items() >= vars(error).items()
