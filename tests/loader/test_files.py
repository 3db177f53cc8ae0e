"""Several files by one call: compiled, and as it is done where there is no compiler."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.loader.source import files
from stoker.loader.source.files import read_files


@pytest.fixture(params=["compiled", "not compiled"], autouse=True)
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "not compiled":
        monkeypatch.setattr(files, "_read_files", None)
    elif files._read_files is None:
        pytest.skip("no C compiler was there when Stoker was installed")


def came(paths: list[str], rooms: list[int]) -> list[bytes | int]:
    """The bytes of each file, or minus an errno; what no file has written is still as it was."""
    out = bytearray(b"\xee" * (sum(rooms) + 8))
    got = read_files(paths, np.array(rooms, np.int64), memoryview(out))
    ends = np.cumsum(rooms).tolist()
    for end, room, size in zip(ends, rooms, got, strict=True):
        assert set(out[end - room + max(size, 0) : end]) <= {0xEE}
    assert set(out[len(out) - 8 :]) == {0xEE}
    return [
        bytes(out[end - room : end - room + size]) if size >= 0 else size
        for end, room, size in zip(ends, rooms, got, strict=True)
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 300)), max_size=12))
def test_files_come_one_after_the_other_each_in_its_own_room(tmp_path: Path, wanted: list[tuple[bytes, int]]) -> None:
    paths = [str(tmp_path / f"{at} ü.jpg") for at in range(len(wanted))]
    for path, (body, _) in zip(paths, wanted, strict=True):
        Path(path).write_bytes(body)
    assert came(paths, [room for _, room in wanted]) == [body[:room] for body, room in wanted]


def test_what_cannot_be_read_has_its_error_and_the_others_come(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"abc")
    (tmp_path / "empty").touch()
    odd = os.fsdecode(b"\xff\xfe.jpg")
    (tmp_path / odd).write_bytes(b"odd")
    paths = [str(tmp_path / name) for name in ("here", "gone", "empty", ".", odd, "here")]
    assert came(paths, [4] * 6) == [b"abc", -errno.ENOENT, b"", -errno.EISDIR, b"odd", b"abc"]


def test_a_zero_in_a_name_moves_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"abc")
    (tmp_path / "a").write_bytes(b"not asked for")
    paths = [str(tmp_path / name) for name in ("a\0b", "here")]
    assert came(paths, [4, 4]) == [-errno.ENOENT, b"abc"]


def test_room_that_is_not_there_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"abc")
    with pytest.raises(ValueError, match="8 bytes of room; expected 9"):
        read_files([str(tmp_path / "here")], np.array([9]), memoryview(bytearray(8)))
