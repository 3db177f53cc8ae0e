"""Files are read with their pages dropped, then again, and are the same afterwards."""

import os
from pathlib import Path

from stoker.observe import probe_cold


def test_pages_that_were_dropped_come_from_storage_and_nothing_is_written(tmp_path: Path) -> None:
    names = []
    for i in range(4):
        path = tmp_path / f"{i}.bin"
        with path.open("wb") as file:
            file.write(os.urandom(300_000))
            file.flush()
            os.fsync(file.fileno())
        names.append(str(path))
    before = [(Path(name).read_bytes(), Path(name).stat().st_mtime_ns) for name in names]
    found = probe_cold.measure(tuple(names))
    assert found is not None
    assert (found.pieces, found.size_bytes) == (4, 1_200_000)
    assert len(found.cold_s) == len(found.warm_s) == 4
    assert 0 <= found.disk_bytes <= 2 * found.size_bytes  # 0 on a file system that lives in memory
    assert [(Path(name).read_bytes(), Path(name).stat().st_mtime_ns) for name in names] == before


def test_a_file_that_went_away_is_left_out(tmp_path: Path) -> None:
    assert probe_cold.measure((str(tmp_path / "gone"),)) is None


def test_of_a_large_file_only_a_piece_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(40 << 20)
    found = probe_cold.measure((str(path),))
    assert found is not None
    assert found.size_bytes == probe_cold.PIECE_BYTES
