import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import UsageError
from stoker.sizes import format_bytes, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096", 4096),
        ("1b", 1),
        ("16GiB", 16 * 2**30),
        ("16 gib", 16 * 2**30),
        ("16G", 16 * 2**30),
        ("1.5GB", 1_500_000_000),
        ("800MB", 800_000_000),
        (" 2KiB ", 2048),
        ("1TiB", 2**40),
    ],
)
def test_a_size_means_what_it_says(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "0", "0GiB", "-1GiB", "GiB", "16 G i B", "16 monkeys", "1e9", "nan", "1_000", "²GiB"]
)
def test_what_is_not_a_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not a size; expected .* such as 16GiB"):
        parse_bytes(text)


def test_what_is_too_small_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"memory is 10 bytes; expected at least 1\.0 MiB"):
        parse_bytes(10, "memory", least_bytes=1 << 20)


@given(st.integers(1, 2**50))
def test_a_size_for_people_reads_back_as_nearly_the_same(size_bytes: int) -> None:
    assert parse_bytes(format_bytes(size_bytes)) == pytest.approx(size_bytes, rel=0.05)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5 m", 90), ("2h", 7200)])
def test_a_duration_means_what_it_says(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "soon", "1d", "1e3", "nan"])
def test_what_is_not_a_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="expected something like 90s"):
        parse_seconds(text)
