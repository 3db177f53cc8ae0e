"""Bad input is named: file, row, reason. Nothing is lost and nothing hangs."""

import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from loader.sources import check, npy, records
from stoker import errors
from stoker.loader.front import Loader

FIELDS = ("id", "odd", "half", "big")


def read_into(got: list[int], batches: Iterator[Any]) -> None:
    for batch in batches:
        got += check(batch)


def test_an_empty_glob_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(errors.NoDataError, match=r"no file matches .*shards.*\.npy"):
        stoker.open(tmp_path / "shards*.npy")
    with pytest.raises(errors.NoDataError, match="does not exist"):
        stoker.open(tmp_path / "nothing.npy")
    with pytest.raises(errors.NoDataError, match="an empty list"):
        stoker.open([])


def test_files_of_a_directory_a_glob_or_a_list_come_sorted_by_name(tmp_path: Path) -> None:
    for name, first in (("b.npy", 5), ("a.npy", 0)):
        np.save(tmp_path / name, records(first, 5))
    for how in (tmp_path, str(tmp_path / "*.npy"), [tmp_path / "b.npy", tmp_path / "a.npy"]):
        with Loader(stoker.open(how), 10) as loader:
            assert check(next(iter(loader))) == list(range(10))


def test_files_behind_links_count_and_a_loop_of_links_ends(tmp_path: Path) -> None:
    npy(tmp_path / "far", [5])
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "part").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "back").symlink_to(tmp_path / "here")
    (tmp_path / "here" / "self").symlink_to("self")
    (tmp_path / "here" / "gone").symlink_to("nowhere")
    with Loader(stoker.open(tmp_path / "here"), 10) as loader:
        assert [check(batch) for batch in loader] == [list(range(5))]


def test_a_shard_cut_short_names_the_first_missing_row(tmp_path: Path) -> None:
    npy(tmp_path, [5, 9])
    path = tmp_path / "001.npy"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(errors.TruncatedError, match=r"001\.npy, row 8: cut short.* 9 rows, 8 are there") as caught:
        stoker.open(tmp_path)
    assert (caught.value.path, caught.value.row) == (str(path), 8)


def test_skip_leaves_out_what_is_missing_and_lists_it(tmp_path: Path) -> None:
    npy(tmp_path, [5, 9, 4])
    path = tmp_path / "001.npy"
    os.truncate(path, path.stat().st_size - 1)
    (tmp_path / "002.npy").write_bytes(b"")
    source = stoker.open(tmp_path, on_error="skip")
    with Loader(source, 4, on_error="skip") as loader:
        assert [i for batch in loader for i in check(batch)] == list(range(13))
        stats = loader.stats()
    assert [(Path(s.path).name, s.row, s.rows) for s in stats.skipped] == [("001.npy", 8, 1), ("002.npy", 0, 0)]
    assert stats.skipped_rows == 1


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda p: p.write_bytes(b""), errors.EmptyFileError, "the file is empty"),
        (lambda p: np.save(p, records(0, 0)), errors.EmptyFileError, "has no row"),
        (lambda p: p.write_bytes(b"PK\x03\x04 not numpy"), errors.CorruptError, "expected a .npy file"),
        (lambda p: np.save(p, np.zeros(4)), errors.OtherTypeError, "a row is float64; expected .* as in .*000.npy"),
        (lambda p: np.save(p, np.array([{}]), allow_pickle=True), errors.OtherTypeError, "pickled Python objects"),
        (lambda p: np.save(p, np.zeros((3, 4), order="F")), errors.OtherTypeError, "Fortran order"),
        (lambda p: np.save(p, np.float32(1)), errors.OtherTypeError, "single value"),
        (lambda p: p.write_bytes(b"\x93NUMPY\x01\x00\xff\xff{'descr'"), errors.TruncatedError, "inside its header"),
        (lambda p: p.write_bytes(b"\x93NUMPY\x01\x00\x04\x00boom"), errors.CorruptError, "header cannot be read"),
        (lambda p: p.write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{}"), errors.CorruptError, "header claims"),
    ],
)
def test_a_bad_shard_is_named(
    tmp_path: Path, make: Callable[[Path], object], error: type[errors.DataError], says: str
) -> None:
    npy(tmp_path, [5])
    make(tmp_path / "001.npy")
    with pytest.raises(error, match=f"001.npy: .*{says}"):
        stoker.open(tmp_path)


def test_a_shard_cut_short_while_in_use_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    source = npy(tmp_path, [4000, 4000])
    with Loader(source, 50, True, threads=1) as loader:
        iterator = iter(loader)
        got = check(next(iterator))
        idle = loader._engine._stream  # type: ignore[attr-defined]
        while len(idle._made) < idle.depth:  # a gather that is under way cannot be stopped
            time.sleep(0.01)
        os.truncate(tmp_path / "001.npy", 4096)
        time.sleep(0.1)
        with pytest.raises(errors.TruncatedError, match=r"001\.npy, row \d+: was cut short while in use"):
            read_into(got, iterator)
        state = loader.state_dict()
        assert state["position"] == len(got)


def test_a_shard_that_vanishes_mid_epoch_is_still_delivered(tmp_path: Path) -> None:
    with Loader(npy(tmp_path, [400]), 50, True, window=10) as loader:
        iterator = iter(loader)
        got = check(next(iterator))
        (tmp_path / "000.npy").unlink()
        for batch in iterator:
            got += check(batch)
    assert sorted(got) == list(range(400))


def test_an_exception_in_map_names_the_batch_and_keeps_its_cause(tmp_path: Path) -> None:
    def fails(batch: dict[str, Any]) -> dict[str, Any]:
        if 20 in batch["id"].tolist():
            raise ValueError("twenty")
        return batch

    with Loader(npy(tmp_path, [40]), 8, map=fails) as loader:
        got: list[int] = []
        with pytest.raises(errors.MapError, match=r"position 16 .*row 16 of .*000\.npy.*ValueError: twenty") as caught:
            read_into(got, iter(loader))
        assert isinstance(caught.value.__cause__, ValueError)
        assert got == list(range(16))
        assert loader.state_dict()["position"] == 16


def test_an_error_among_batches_that_were_gathered_at_once_comes_in_its_turn(tmp_path: Path) -> None:
    runs: set[int] = set()

    def fails(batch: dict[str, Any]) -> dict[str, Any]:
        runs.add(loader.stats().run or 0)
        if 3001 in batch["id"].tolist():
            raise ValueError("no")
        return batch

    with Loader(npy(tmp_path, [4000]), 8, map=fails, threads=1) as loader:
        got: list[int] = []
        with pytest.raises(errors.MapError, match=r"position 3000 .*row 3000 of"):
            read_into(got, iter(loader))
        assert got == list(range(3000))
        assert max(runs) > 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"batch_size": 0}, "batch_size is 0; expected a whole number from 1 on"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_size": 2, "seed": -1}, "seed is -1"),
        ({"batch_size": 2, "shuffle": "yes"}, "shuffle is 'yes'; expected True, False or 'full'"),
        ({"batch_size": 2, "memory": "lots"}, "memory is 'lots', which is not a size; .* 16GiB"),
        ({"batch_size": 2, "memory": 10}, "at least 1.0 MiB"),
        ({"batch_size": 2, "window": 0}, "window is 0"),
        ({"batch_size": 2, "on_error": "ignore"}, "on_error is 'ignore'; expected 'raise' or 'skip'"),
        ({"batch_size": 2, "rank": 2, "world_size": 2}, "rank is 2 of 2; expected 0 to 1"),
        ({"batch_size": 2, "rank": 1}, "give both"),
        ({"batch_size": 2, "rank": 1, "world_size": 11}, "10 samples are too few for 11 ranks"),
        ({"batch_size": 11, "drop_last": True}, "10 samples are too few .* drop_last"),
    ],
)
def test_a_wrong_argument_is_answered_in_one_line(tmp_path: Path, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(errors.UsageError, match=says) as caught:
        Loader(npy(tmp_path, [10]), **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
@pytest.mark.parametrize("given", [np.arange(5), [1, 2], []])
def test_an_order_of_the_users_own_is_refused_for_a_source(tmp_path: Path, name: str, given: Any) -> None:
    how: dict[str, Any] = {name: given}
    with pytest.raises(errors.UsageError, match=f"^{name} does not apply to a source that stoker.open opened"):
        Loader(npy(tmp_path, [10]), 2, **how)


def test_a_batch_that_memory_cannot_hold_is_refused_with_both_sizes(tmp_path: Path) -> None:
    source = npy(tmp_path, [60_000])
    with pytest.raises(errors.UsageError, match=r"a batch of 60000 rows takes about 1\.\d MB, and memory is 1\.0 MB"):
        Loader(source, 60_000, memory="1MiB")
    Loader(source, 10**9, memory="16MiB").close()  # no more rows than there are


def test_ranks_that_would_get_fewer_batches_are_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="1 samples remain for the last batch of 2 ranks"):
        Loader(npy(tmp_path, [9]), 1, rank=0, world_size=2).close()


def test_a_rest_too_small_for_all_ranks_is_shared_so_that_none_steps_less(tmp_path: Path) -> None:
    source = npy(tmp_path, [9])
    ranks = [[check(batch) for batch in Loader(source, 2, rank=rank, world_size=2)] for rank in range(2)]
    assert ranks == [[[0, 1], [4, 5], [7]], [[2, 3], [6], [8]]]


def test_ranks_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with Loader(npy(tmp_path, [8]), 4) as loader:
        assert [check(batch) for batch in loader] == [[4, 5, 6, 7]]
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(errors.UsageError, match="RANK is 'one' and WORLD_SIZE is '2'"):
        Loader(npy(tmp_path, [8]), 4)


def test_a_state_of_another_source_is_refused_with_both_sides_printed(tmp_path: Path) -> None:
    with Loader(npy(tmp_path / "one", [8]), 4) as loader:
        state = loader.state_dict()
    with (
        Loader(npy(tmp_path / "two", [8, 3]), 4) as loader,
        pytest.raises(errors.OtherSourceError, match=r"Saved: .*rows 8.*Here: .*rows 11"),
    ):
        loader.load_state_dict(state)
    with (
        Loader(npy(tmp_path / "one", [8]), 4, True) as loader,
        pytest.raises(errors.OtherSourceError, match=r"taken with shuffle=False \(here True\)"),
    ):
        loader.load_state_dict(state)


def test_a_state_is_small_and_survives_json(tmp_path: Path) -> None:
    source = npy(tmp_path, [3] * 300)
    with Loader(source, 4, True) as loader:
        next(iter(loader))
        text = json.dumps(loader.state_dict())
        assert len(text) < 2048
        loader.load_state_dict(json.loads(text))
        rest = [i for batch in loader for i in check(batch)]
    assert len(rest) == 896


def test_a_source_can_be_pickled(tmp_path: Path) -> None:
    source = pickle.loads(pickle.dumps(npy(tmp_path, [8])))
    with Loader(source, 8) as loader:
        assert check(next(iter(loader))) == list(range(8))


def test_columns_choose_fields_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    npy(tmp_path, [8])
    with Loader(stoker.open(tmp_path, columns=["big", "id"]), 8) as loader:
        assert list(next(iter(loader))) == ["big", "id"]
    with pytest.raises(errors.UsageError, match="no field is called label; there are id, odd, half, big"):
        stoker.open(tmp_path, columns=["label"])


def test_a_plain_array_has_one_field(tmp_path: Path) -> None:
    array = np.arange(60, dtype="f4").reshape(10, 2, 3)
    np.save(tmp_path / "x.npy", array)
    with Loader(stoker.open(tmp_path), 10) as loader:
        np.testing.assert_array_equal(next(iter(loader))["data"], array)


def test_records_with_more_than_one_axis_come_field_by_field(tmp_path: Path) -> None:
    array = records(0, 60).reshape(10, 2, 3)
    np.save(tmp_path / "x.npy", array)
    with Loader(stoker.open(tmp_path), 4, True, threads=1) as loader:
        for _ in range(3):
            batches = list(loader)
            got = {name: np.concatenate([batch[name] for batch in batches]) for name in FIELDS}
            rows = got["id"][:, 0, 0] // 6
            assert sorted(rows) == list(range(10))
            for name in FIELDS:
                np.testing.assert_array_equal(got[name], array[name][rows])
    with Loader(stoker.open(tmp_path, columns=["big"]), 10) as loader:
        assert {name: value.shape for name, value in next(iter(loader)).items()} == {"big": (10, 2, 3)}


def test_no_column_at_all_is_refused(tmp_path: Path) -> None:
    npy(tmp_path, [8])
    with pytest.raises(errors.UsageError, match="columns is empty; expected some of id, odd, half, big"):
        stoker.open(tmp_path, columns=[])


def test_the_main_threads_core_count_is_left_alone(tmp_path: Path) -> None:
    import torch

    before = torch.get_num_threads()
    seen: list[int] = []
    with Loader(npy(tmp_path, [800]), 4, threads=3) as loader:
        for _ in loader:
            pass
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
    assert [torch.get_num_threads(), *seen] == [before, before]


def test_more_shards_than_descriptors_say_what_to_do(tmp_path: Path) -> None:
    npy(tmp_path, [1] * 80)
    code = """
        import resource, sys
        import stoker
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
        try:
            stoker.open(sys.argv[1])
        except stoker.errors.LoaderError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        print(len(stoker.open(sys.argv[1])))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "80 shards need a file descriptor each, and this process may have 60 in all; allow more with ulimit -n" in (
        done.stdout
    )
    assert done.stdout.endswith("80\n")


HEADERS = """
import gc, sys, threading, time
import numpy as np
from stoker.loader.source.header import read_header

np.save("rows.npy", np.zeros(24, [("id", "<i8"), ("odd", "|u1", (3,)), ("half", "<f2", (5,)), ("big", ">i4")]))
gc.set_threshold(5, 2, 2)
gc.callbacks.append(lambda *_: time.sleep(0))  # as anybody does who watches the collector
failed = []

def parse():
    try:
        for _ in range(300):
            assert read_header("rows.npy").shape == (24,)
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=parse) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(repr(failed) if failed else 0)
"""


def test_headers_are_read_by_many_threads_at_once(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", HEADERS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
