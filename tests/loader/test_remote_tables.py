"""Records, Parquet, volumes and text in a store: asked for by ranges or whole, kept, verified; every fault is named."""

import asyncio
import gzip
import http.server
import json
import multiprocessing
import pickle
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorstore

import stoker
from loader import scans, sources, texts
from loader.sources import access, check
from stoker import errors
from stoker.loader.front import Loader
from stoker.loader.source import listing, parquet_remote
from stoker.loader.stats import Stats
from stoker.sim.store import Store

ROWS = 60


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "bucket").mkdir()
    with Store(tmp_path / "bucket") as served:
        yield served


def write_npy(folder: Path) -> None:
    sources.npy(folder, [20, 40]).close()


def write_parquet(folder: Path) -> None:
    sources.parquet(folder, [20, 40]).close()


def opened(store: Store, name: str = "rows/", **how: Any) -> Any:
    how = {"timeout_s": 20, "retries": 8} | how
    return stoker.open(f"s3://{store.bucket}/{name}", store_options=access(store), **how)


def epoch(source: Any, **how: Any) -> tuple[list[int], Stats]:
    with Loader(source, 8, True, **how) as loader:
        return sorted(i for batch in loader for i in check(batch)), loader.stats()


KINDS = pytest.mark.parametrize("write", [write_npy, write_parquet])


@KINDS
def test_what_is_named_is_opened(store: Store, write: Any) -> None:
    write(store.root / "rows" / "deep")
    (store.root / "rows" / "readme.txt").write_text("no rows")
    suffix = next((store.root / "rows" / "deep").iterdir()).suffix
    for name in ("rows/", f"rows/deep/*{suffix}", f"rows/**/*{suffix}", f"rows/*/00[01]{suffix}", "rows/deep/"):
        assert epoch(opened(store, name))[0] == list(range(ROWS))
    for name in (f"rows/deep/001{suffix}", f"rows/deep/?01{suffix}", f"rows/deep/00[!0]{suffix}"):
        assert epoch(opened(store, name))[0] == list(range(20, ROWS))
    both = [f"s3://{store.bucket}/rows/deep/{name}{suffix}" for name in ("000", "001")]
    assert epoch(stoker.open(both, store_options=access(store)))[0] == list(range(ROWS))
    with pytest.raises(errors.UsageError, match=r"\[z-a\]\.npy is no pattern"):
        opened(store, "rows/deep/[z-a].npy")
    for name in (f"rows/*{suffix}", "nothing/", "rows/deep/*.txt", f"rows/deep/[0*{suffix}", f"rows[!a]deep/*{suffix}"):
        with pytest.raises(errors.NoDataError, match=r"no object matches s3://data/"):
            opened(store, name)


def test_a_plain_web_server_is_asked_for_what_is_named(store: Store) -> None:
    write_npy(store.root / "rows")
    url = f"{store.url}/rows"
    source = stoker.open([f"{url}/000.npy", f"{url}/001.npy"])
    assert epoch(source)[0] == list(range(ROWS))


def test_a_server_that_sends_no_parts_is_named_at_once(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", sources.records(0, 20_000))
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(errors.RemoteError, match=r"a\.npy: the server does not send parts of an object"):
                stoker.open(f"http://127.0.0.1:{server.server_port}/a.npy")
        finally:
            server.shutdown()
            thread.join()


@KINDS
def test_a_folder_of_this_machine_can_have_a_cache(tmp_path: Path, write: Any) -> None:
    write(tmp_path / "rows")
    for given in (tmp_path / "rows", f"file://{tmp_path}/rows/"):
        got, stats = epoch(stoker.open(given, cache=tmp_path / "cache"))
        assert got == list(range(ROWS))
    assert stats.remote is not None
    assert stats.remote.requests == 0  # the first one filled it


@KINDS
def test_what_was_cached_needs_no_store(store: Store, tmp_path: Path, write: Any) -> None:
    write(store.root / "rows")
    first, _ = epoch(opened(store, cache=tmp_path / "cache"))
    store.close()
    again, stats = epoch(opened(store, cache=tmp_path / "cache"))
    assert first == again == list(range(ROWS))
    assert stats.remote is not None
    assert (stats.remote.requests, stats.remote.cache_rejected, stats.remote.cache_kept_share) == (0, 0, 1.0)


def test_a_budget_keeps_a_part_and_the_rest_is_read_again(store: Store, tmp_path: Path) -> None:
    for number in range(3):
        folder = store.root / "rows"
        folder.mkdir(exist_ok=True)
        np.save(folder / f"{number}.npy", sources.records(number * 40_000, 40_000))
    how: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": "1500KB"}
    for _ in range(2):
        source = opened(store, **how)
        with Loader(source, 5000, True) as loader:
            ids = np.concatenate([batch["id"].numpy() for batch in loader])
        assert sorted(ids.tolist()) == list(range(120_000))
        figures = source.remote()
        assert 0 < figures.cache_kept_share < 1
    assert figures.cache_hits > 0
    assert 0 < figures.bytes_received < 120_000 * sources.RECORD.itemsize
    assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("**/*")) < 1_700_000


@KINDS
def test_some_objects_are_copied_ahead_the_same_ones_for_a_seed(
    store: Store, tmp_path: Path, write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write(store.root / "rows")
    how: dict[str, Any] = {"cache": tmp_path / "cache"}
    part = opened(store, **how).stage(1, seed=3)
    assert "pieces" in capsys.readouterr().err
    assert part.staged.copied == part.staged.images > 0
    store.close()
    again = opened(store, **how).stage(1, seed=3)
    assert again.staged.copied == 0
    assert again.paths() == part.paths()
    got, stats = epoch(again)
    assert got in (list(range(20)), list(range(20, ROWS)))
    assert stats.remote is not None
    assert stats.remote.requests == 0
    source: Any = stoker.open(f"file://{store.root}/rows/", timeout_s=3)
    with pytest.raises(errors.UsageError, match=r"stage copies from a store into a cache"):
        source.stage()
    with pytest.raises(errors.UsageError, match=r"subset is 3; expected a share"):
        opened(store, **how).stage(3)


def test_only_the_columns_that_are_wanted_are_brought(store: Store) -> None:
    (store.root / "rows").mkdir()
    wide = np.random.default_rng(0).integers(0, 1 << 62, (4000, 112))
    table = pa.table({"id": np.arange(4000), "wide": pa.FixedSizeListArray.from_arrays(pa.array(wide.ravel()), 112)})
    pq.write_table(table, store.root / "rows" / "a.parquet", row_group_size=1000, compression="none")
    source = opened(store, columns=["id"])
    with Loader(source, 100) as loader:
        assert [int(i) for batch in loader for i in batch["id"]] == list(range(4000))
    assert source.remote().bytes_received < 400_000


def test_of_many_footers_only_some_are_kept_as_they_are_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sources.parquet(store.root / "rows", [12] * 5).close()
    (store.root / "rows" / "other.parquet").write_bytes(b"")
    one = pq.read_metadata(store.root / "rows" / "000.parquet").serialized_size + 8
    monkeypatch.setattr(parquet_remote, "_PARSED_BYTES", 2 * one + 99)
    source = opened(store, on_error="skip")
    for threads in (0, 4):
        assert epoch(source, threads=threads)[0] == list(range(ROWS))
        assert len(source._footers._parsed) == 2
    assert sorted(source._footers._packed) == source.paths()
    monkeypatch.setattr(parquet_remote, "_PARSED_BYTES", 0)
    assert epoch(source)[0] == list(range(ROWS))
    assert len(source._footers._parsed) == 1  # the one in use


def test_a_footer_longer_than_the_first_guess_is_read_whole(store: Store) -> None:
    (store.root / "rows").mkdir()
    columns = {f"a_column_with_a_long_name_{n:03}": np.arange(600) for n in range(40)}
    pq.write_table(pa.table(columns), store.root / "rows" / "a.parquet", row_group_size=5)
    assert pq.read_metadata(store.root / "rows" / "a.parquet").serialized_size > 1 << 17
    with Loader(opened(store), 100) as loader:
        seen = [int(i) for batch in loader for i in batch["a_column_with_a_long_name_039"]]
    assert seen == list(range(600))


@KINDS
@pytest.mark.parametrize(("fault", "counted"), [("500", "retries"), ("503", "throttled"), ("cut", "retries")])
def test_a_burst_of_errors_is_retried_and_counted(tmp_path: Path, write: Any, fault: str, counted: str) -> None:
    write(tmp_path / "bucket" / "rows")
    with Store(tmp_path / "bucket", faults=[f"{fault}:rate=0.3"]) as store:
        got, stats = epoch(opened(store))
    assert got == list(range(ROWS))
    assert stats.remote is not None
    assert getattr(stats.remote, counted) >= 1


@KINDS
def test_a_short_body_is_asked_for_again(tmp_path: Path, write: Any) -> None:
    write(tmp_path / "bucket" / "rows")
    with Store(tmp_path / "bucket", faults=["truncate:rate=0.4"]) as store:
        source = opened(store, retries=20)
        got, _ = epoch(source)
        struck = store.stats()["faults"]["truncate"]
    assert got == list(range(ROWS))
    # What was asked for ahead of the next epoch may have been given up before it was asked for again.
    assert 0 < source.remote().rejected <= struck
    assert source.remote().retries <= source.remote().rejected


@KINDS
def test_what_changed_or_went_since_the_listing_is_named(store: Store, write: Any) -> None:
    write(store.root / "rows")
    path = sorted((store.root / "rows").iterdir())[1]
    source, body = opened(store), path.read_bytes()
    path.write_bytes(body[:-1] + b"!")
    with pytest.raises(errors.ChangedError, match=r"001\.\w+: changed since it was listed.*relist=True"):
        epoch(source)
    path.unlink()
    with pytest.raises(errors.VanishedError, match=r"001\.\w+: the object is gone"):
        epoch(source)
    got, stats = epoch(source, on_error="skip")
    assert got == list(range(20))
    assert stats.skipped_rows == 40


@KINDS
def test_what_cannot_be_opened_is_named_or_left_out(store: Store, write: Any) -> None:
    write(store.root / "rows")
    suffix = next((store.root / "rows").iterdir()).suffix
    for name, body, reason in (("2", b"", "is empty"), ("3", b"nonsense" * 9, "")):
        (store.root / "rows" / f"{name}{suffix}").write_bytes(body)
        with pytest.raises(errors.DataError, match=rf"s3://data/rows/{name}\.\w+: .*{reason}"):
            opened(store)
        got, stats = epoch(opened(store, on_error="skip"))
        assert got == list(range(ROWS))
        assert [Path(one.path).stem for one in stats.skipped] == [name]
        (store.root / "rows" / f"{name}{suffix}").unlink()


def test_several_kinds_and_images_and_options_that_are_none(store: Store) -> None:
    write_npy(store.root / "rows")
    write_parquet(store.root / "rows" / "more")
    with pytest.raises(errors.UsageError, match=r"several kinds \(\.npy, \.parquet\)"):
        opened(store)
    with pytest.raises(errors.UsageError, match=r"cach= is no option here; there are columns, cache"):
        opened(store, "rows/*.npy", cach="x")
    with pytest.raises(errors.UsageError, match=r"cache_bytes needs cache"):
        opened(store, "rows/*.npy", cache_bytes="1GB")
    with pytest.raises(errors.UsageError, match=r"ftp://x/a\.npy has the scheme ftp://"):
        stoker.open("ftp://x/a.npy")
    with pytest.raises(errors.UsageError, match=r"are two stores"):
        stoker.open(["s3://a/x.npy", "s3://b/x.npy"])
    sources.pictures(store.root / "photos", [2])
    with pytest.raises(errors.UsageError, match=r"size is needed to open images"):
        opened(store, "photos/")


@KINDS
def test_what_is_named_twice_comes_once(store: Store, tmp_path: Path, write: Any) -> None:
    write(store.root / "rows")
    suffix = next((store.root / "rows").iterdir()).suffix
    url = f"s3://{store.bucket}/rows/000{suffix}"
    how: dict[str, Any] = {"store_options": access(store), "cache": tmp_path / "cache"}
    assert epoch(stoker.open([url, url], **how))[0] == list(range(20))
    both = [url, f"s3://{store.bucket}/rows/001{suffix}"]
    assert epoch(stoker.open(both, **how))[0] == list(range(ROWS))
    assert epoch(stoker.open(url, **how))[0] == list(range(20))
    folders = [f"s3://{store.bucket}/rows/", f"s3://{store.bucket}/rows"]
    assert epoch(stoker.open(folders[:1], **how))[0] == list(range(ROWS))
    with pytest.raises(errors.VanishedError, match=r"/rows: there is no such object; the address of a folder ends"):
        stoker.open(folders[1], **how)


@KINDS
def test_several_folders_an_iterator_and_a_running_loop(store: Store, write: Any) -> None:
    write(store.root / "rows" / "a")
    write(store.root / "rows" / "b")
    given = [f"s3://{store.bucket}/rows/{name}/" for name in ("a", "b")]
    twice = sorted([*range(ROWS), *range(ROWS)])
    assert epoch(stoker.open(iter(given), store_options=access(store)))[0] == twice
    assert epoch(stoker.open((store.root / "rows" / "a").iterdir()))[0] == list(range(ROWS))
    suffix = next((store.root / "rows" / "a").iterdir()).suffix

    async def in_a_notebook() -> int:
        return len(stoker.open(f"{given[0]}000{suffix}", store_options=access(store)))

    assert asyncio.run(in_a_notebook()) == 20


@KINDS
def test_a_link_to_nothing_is_named_with_a_cache_too(tmp_path: Path, write: Any) -> None:
    write(tmp_path / "rows")
    suffix = next((tmp_path / "rows").iterdir()).suffix
    (tmp_path / "rows" / f"002{suffix}").symlink_to(tmp_path / "not_fetched")
    with pytest.raises(errors.VanishedError, match=r"002\.\w+: is a link to"):
        stoker.open(tmp_path / "rows", cache=tmp_path / "cache")
    source = stoker.open(tmp_path / "rows", cache=tmp_path / "cache", on_error="skip")
    assert epoch(source)[0] == list(range(ROWS))
    assert [Path(one.path).stem for one in source.skipped] == ["002"]


def test_a_state_of_local_files_is_refused_where_blocks_lie_otherwise(tmp_path: Path) -> None:
    write_npy(tmp_path / "rows")
    with Loader(stoker.open(tmp_path / "rows"), 8, True) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with (
        Loader(stoker.open(tmp_path / "rows", cache=tmp_path / "cache"), 8, True) as loader,
        pytest.raises(errors.OtherSourceError),
    ):
        loader.load_state_dict(state)


def test_choices_below_one_address_share_a_budget_and_leave_each_other_alone(store: Store, tmp_path: Path) -> None:
    (store.root / "rows").mkdir()
    for name in ("a", "b"):
        np.save(store.root / "rows" / f"{name}.npy", sources.records(0, 80_000))
    how: dict[str, Any] = {"cache": tmp_path / "cache", "cache_bytes": "3MB"}
    for _ in range(2):
        for name in ("a", "b"):
            source = opened(store, f"rows/{name}*.npy", **how)
            with Loader(source, 5000) as loader:
                assert sum(len(batch["id"]) for batch in loader) == 80_000
    shares = [opened(store, f"rows/{name}*.npy", **how).remote().cache_kept_share for name in ("a", "b")]
    assert shares[0] == 1.0
    assert shares[1] < 1.0
    assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("**/*")) < 3_300_000
    with Loader(source := opened(store, "rows/a*.npy", **how), 5000) as loader:
        list(loader)
    assert source.remote().requests == 0


def _in_a_fork(source: Any, told: Any) -> None:
    try:
        with Loader(source, 8) as loader:
            list(loader)
    except errors.ForkedError as error:
        told.put(str(error))
    else:
        told.put("loaded")


def test_a_fork_is_told_at_once_that_its_store_stayed_behind(store: Store) -> None:
    write_npy(store.root / "rows")
    source = opened(store)
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    child = context.Process(target=_in_a_fork, args=(source, told))
    child.start()
    assert "start the process with spawn" in told.get(timeout=30)
    child.join(30)
    assert child.exitcode == 0


@KINDS
def test_a_state_goes_on_and_a_source_can_be_sent(store: Store, write: Any) -> None:
    write(store.root / "rows")
    source = opened(store)
    with Loader(source, 8, True) as loader:
        batches = iter(loader)
        seen = [i for _ in range(3) for i in check(next(batches))]
        state = json.loads(json.dumps(loader.state_dict()))
    sent = pickle.loads(pickle.dumps(source))
    with Loader(sent, 8, True) as loader:
        loader.load_state_dict(state)
        seen += [i for batch in loader for i in check(batch)]
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_closing_in_mid_request_leaves_no_thread(tmp_path: Path, kind: str) -> None:
    write_npy(tmp_path / "bucket" / "npy")
    scans.write_zarr(tmp_path / "bucket" / "zarr" / "a.zarr", np.ones((8, 8, 8), np.uint16))
    how: dict[str, Any] = {"cache": tmp_path / "cache"} | ({"patch": (2, 2, 2)} if kind == "zarr" else {})
    with Store(tmp_path / "bucket") as quick:
        opened(quick, f"{kind}/", **how)  # lists it, and reads the heads
    before = set(threading.enumerate())
    with Store(tmp_path / "bucket", latency_s=30) as store:
        source = opened(store, f"{kind}/", **how)
        loader = Loader(source, 8)
        seen: list[BaseException] = []

        def wait() -> None:
            try:
                next(iter(loader))
            except errors.ClosedError as error:
                seen.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        began_s = time.monotonic()
        loader.close()
        assert time.monotonic() - began_s < 15  # the store would answer in thirty
        waiting.join(10)
    assert len(seen) == 1
    left = {thread for thread in set(threading.enumerate()) - before if thread.is_alive()}
    assert not left


# ---- volumes


def write_zarr2(path: Path, array: Any, separator: str) -> None:
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": str(path)},
        "metadata": {"shape": array.shape, "chunks": [3, 4, 5], "dtype": "<u2", "dimension_separator": separator},
    }
    tensorstore.open(spec, create=True).result()[...].write(array).result()


@pytest.mark.parametrize("separator", [".", "/"])
def test_a_box_of_an_older_zarr_is_what_it_is_on_disk(store: Store, separator: str) -> None:
    array = np.arange(10 * 11 * 12, dtype=np.uint16).reshape(10, 11, 12) + 1
    write_zarr2(store.root / "vol" / "a.zarr", array, separator)
    source = opened(store, "vol/a.zarr", patch=(4, 5, 6), patches=20)
    with Loader(source, 4, True) as loader:
        for batch in loader:
            for patch, corner in zip(batch["patch"], batch["corner"].tolist(), strict=True):
                at = tuple(slice(c, c + side) for c, side in zip(corner, (4, 5, 6), strict=True))
                np.testing.assert_array_equal(patch, array[at])
    assert loader.stats().amplification is not None


def write_sharded(path: Path, array: Any, chunk: list[int], shard: list[int], *, at_end: bool, checked: bool) -> None:
    plain: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    sharding = {
        "chunk_shape": chunk,
        "codecs": plain,
        "index_codecs": [*plain, *([{"name": "crc32c"}] if checked else [])],
        "index_location": "end" if at_end else "start",
    }
    metadata = {
        "shape": array.shape,
        "data_type": str(array.dtype),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}, "metadata": metadata}
    tensorstore.open(spec, create=True).result()[...].write(array).result()


@pytest.mark.parametrize(("at_end", "checked"), [(True, True), (False, True), (True, False)])
def test_of_a_shard_only_the_chunks_of_a_box_are_brought(store: Store, at_end: bool, checked: bool) -> None:
    array = np.random.default_rng(0).integers(1, 60000, (64, 300, 320), np.uint16)  # 12 MB
    array[0:8, 0:50, 0:40] = 0  # fill value: a chunk that is not written
    write_sharded(store.root / "a.zarr", array, [8, 50, 40], [64, 300, 320], at_end=at_end, checked=checked)
    source = opened(store, "a.zarr", patch=(8, 40, 40), patches=8, group=2, missing="fill")
    (volume,) = (one["patch"] for one in source._volumes)
    for low, high in (((0, 0, 0), (8, 60, 60)), ((56, 210, 250), (64, 300, 320)), ((7, 49, 39), (9, 51, 41))):
        box = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
        np.testing.assert_array_equal(volume.read(box), array[box])
    assert source.remote().bytes_received < array.nbytes
    with Loader(source, 4, True) as loader:
        assert sum(len(batch["patch"]) for batch in loader) == 8


def test_a_shard_whose_index_is_damaged_is_named(store: Store) -> None:
    array = np.ones((8, 8, 8), np.uint16)
    write_sharded(store.root / "a.zarr", array, [4, 4, 4], [8, 8, 8], at_end=True, checked=True)
    shard = next(path for path in (store.root / "a.zarr" / "c").rglob("*") if path.is_file())
    body = shard.read_bytes()
    shard.write_bytes(body[:-8] + b"\0\0\0\1" + body[-4:])
    with pytest.raises(errors.ChecksumError, match=r"s3://data/a\.zarr.*index of a shard"):
        list(Loader(opened(store, "a.zarr", patch=(4, 4, 4)), 1))
    shard.write_bytes(body[-20:])
    with pytest.raises(errors.TruncatedError, match=r"s3://data/a\.zarr.*shorter than its index"):
        list(Loader(opened(store, "a.zarr", patch=(4, 4, 4)), 1))


def test_a_chunk_that_is_not_there_is_named_or_filled(store: Store) -> None:
    array = np.ones((6, 8, 10), np.uint16)
    write_zarr2(store.root / "a.zarr", array, ".")
    (store.root / "a.zarr" / "1.1.1").unlink()
    with (
        pytest.raises(errors.MissingChunkError, match=r"s3://data/a\.zarr, row 0: .*missing='fill'"),
        Loader(opened(store, "*.zarr", patch=(6, 8, 10)), 1) as loader,
    ):
        list(loader)
    with Loader(opened(store, "*.zarr", patch=(6, 8, 10), missing="fill"), 1) as loader:
        (batch,) = loader
    assert int(batch["patch"].sum()) == 6 * 8 * 10 - 3 * 4 * 5


def test_volumes_that_are_none_are_named(store: Store) -> None:
    with pytest.raises(errors.NoDataError, match=r"no volume matches s3://data/none/\*\.zarr"):
        opened(store, "none/*.zarr", patch=(1, 2, 2))
    write_zarr2(store.root / "older.zarr" / "0", np.zeros((4, 4, 4), np.uint16), ".")
    (store.root / "older.zarr" / ".zgroup").write_text('{"zarr_format": 2}')
    with pytest.raises(errors.UsageError, match=r"older\.zarr.* is a group of arrays; open one .*older\.zarr/0"):
        opened(store, "older.zarr", patch=(2, 2, 2))
    group = store.root / "group.zarr"
    scans.write_zarr(group / "0", np.zeros((4, 4, 4), np.uint8))
    (group / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(errors.UsageError, match=r"s3://data/group\.zarr is a group of arrays"):
        opened(store, "*.zarr", patch=(2, 2, 2))
    assert len(opened(store, "group.zarr/0", patch=(2, 2, 2))) == 8
    with pytest.raises(errors.UsageError, match=r"requests= goes with volumes of a store"):
        stoker.open(store.root / "group.zarr" / "0", patch=(2, 2, 2), requests=3)


def test_volumes_are_prepared_and_their_foreground_found_in_a_store(store: Store, tmp_path: Path) -> None:
    array = np.zeros((12, 12, 12), np.uint16)
    array[3, 4, 5] = 7
    write_zarr2(store.root / "vol" / "a.zarr", array, ".")
    how: dict[str, Any] = {"patch": (2, 2, 2), "cache": tmp_path / "cache", "patches": 12}
    source = opened(store, "vol/*.zarr", labels=f"s3://{store.bucket}/vol/*.zarr", foreground=1.0, **how)
    with Loader(source, 4) as loader:
        assert all(int(patch.numpy().max()) == 7 for batch in loader for patch in batch["label"])
    doubled = opened(store, "vol/*.zarr", **how).cached(lambda volume: volume * 2, key="twice")
    with Loader(doubled, 4) as loader:
        assert {int(value) for batch in loader for value in np.unique(batch["patch"].numpy())} <= {0, 14}


# ---- text


def test_text_is_brought_tokenised_once_and_not_kept(store: Store, tmp_path: Path) -> None:
    texts.write(store.root / "text" / "a.jsonl", [texts.words(i) for i in range(20)])
    packed = store.root / "text" / "b.jsonl.gz"
    texts.write(tmp_path / "b.jsonl", [texts.words(i) for i in range(20, ROWS)])
    packed.write_bytes(gzip.compress((tmp_path / "b.jsonl").read_bytes()))
    how: dict[str, Any] = {"tokenizer": texts.tokenizer(tmp_path), "length": texts.LENGTH, "pad": -1}
    first = opened(store, "text/", cache=tmp_path / "cache", **how)
    assert epoch(first)[0] == list(range(ROWS))
    assert sorted(Path(one).name for one in first.spent.tokenised) == ["a.jsonl", "b.jsonl.gz"]
    assert not list((tmp_path / "cache").glob("incoming*"))
    again = opened(store, "text/*", cache=tmp_path / "cache", **how)
    assert again.spent.tokenised == []
    assert epoch(again)[0] == list(range(ROWS))
    texts.write(store.root / "text" / "a.jsonl", [texts.words(i) for i in range(19)])
    assert epoch(opened(store, "text/*", cache=tmp_path / "cache", **how))[0] == [i for i in range(ROWS) if i != 19]


def test_a_bad_text_in_a_store_is_named_by_its_address(store: Store, tmp_path: Path) -> None:
    (store.root / "a.jsonl").write_text('{"text": "1 2"}\n{nonsense\n')
    (store.root / "b.jsonl").write_text("")
    how: dict[str, Any] = {"tokenizer": texts.tokenizer(tmp_path), "length": 4, "cache": tmp_path / "cache"}
    with pytest.raises(errors.CorruptError, match=r"s3://data/a\.jsonl"):
        opened(store, "a.jsonl", **how)
    with pytest.raises(errors.EmptyFileError, match=r"s3://data/b\.jsonl"):
        opened(store, "b.jsonl", **how)
    with pytest.raises(errors.UsageError, match=r"cache_bytes= is no option of text"):
        opened(store, "a.jsonl", **how, cache_bytes="1GB")
    pq.write_table(pa.table({"text": ["1 2"]}), store.root / "c.parquet")
    with pytest.raises(errors.UsageError, match=r"^s3://data/c\.parquet has no column 'other'"):
        opened(store, "c.parquet", **how, column="other")
    with pytest.raises(errors.UsageError, match=r"retries= goes with text of a store"):
        stoker.open(store.root / "a.jsonl", tokenizer=how["tokenizer"], length=4, retries=3)


def test_a_text_that_comes_spoiled_is_never_used(tmp_path: Path) -> None:
    texts.write(tmp_path / "bucket" / "a.jsonl", [texts.words(i) for i in range(ROWS)])
    how: dict[str, Any] = {"tokenizer": texts.tokenizer(tmp_path), "length": texts.LENGTH, "pad": -1}
    with (
        Store(tmp_path / "bucket", faults=["corrupt:rate=1"]) as store,
        pytest.raises(errors.ChecksumError, match=r"s3://data/a\.jsonl"),
    ):
        opened(store, "a.jsonl", retries=1, cache=tmp_path / "cache", **how)


def goes_once_listed(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    listed = listing.opened

    def opened_and_gone(*given: Any, **how: Any) -> Any:
        found = listed(*given, **how)
        path.unlink()
        return found

    monkeypatch.setattr(listing, "opened", opened_and_gone)


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_a_text_that_is_gone_is_named_or_left_out(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    how: dict[str, Any] = {"length": texts.LENGTH, "pad": -1, "cache": tmp_path / "cache"}
    for first in (0, 20, 40):
        rows = [texts.words(i) for i in range(first, first + 20)]
        texts.write(store.root / "text" / f"{first}.jsonl", rows)
    if kind == "text":
        how |= {"tokenizer": texts.tokenizer(tmp_path)}
    else:
        made = {"tokenizer": texts.tokenizer(tmp_path), "cache": tmp_path / "made"}
        for path in sorted((store.root / "text").iterdir()):
            stoker.open(path, **(how | made))
            next((tmp_path / "made").glob("*.tokens")).rename(path.with_suffix(".tokens"))
            path.unlink()
    path = next((store.root / "text").glob("20.*"))
    body = path.read_bytes()
    goes_once_listed(monkeypatch, path)
    with pytest.raises(errors.VanishedError, match=rf"s3://data/text/{path.name}: the object is gone"):
        opened(store, "text/", **how)
    path.write_bytes(body)
    source = opened(store, "text/", on_error="skip", **how)
    assert [(one.path, one.reason.partition(";")[0]) for one in source.skipped] == [
        (f"s3://data/text/{path.name}", "the object is gone")
    ]
    got, stats = epoch(source)
    assert got == [*range(20), *range(40, ROWS)]
    assert [one.path for one in stats.skipped] == [f"s3://data/text/{path.name}"]
    monkeypatch.undo()
    path.write_bytes(body)  # it is back, and nothing says that it was gone
    assert epoch(opened(store, "text/", on_error="skip", **how))[0] == list(range(ROWS))
    goes_once_listed(monkeypatch, path)
    alone = {"cache": tmp_path / "other"}
    with pytest.raises(errors.NoDataError, match=r"none of 1 files can be loaded; the first: the object is gone"):
        opened(store, f"text/{path.name}", on_error="skip", **(how | alone))


def test_a_text_that_is_a_link_to_nothing_is_named_or_left_out(tmp_path: Path) -> None:
    texts.write(tmp_path / "text" / "a.jsonl", [texts.words(i) for i in range(ROWS)])
    (tmp_path / "text" / "b.jsonl").symlink_to(tmp_path / "not_fetched")
    how: dict[str, Any] = {"tokenizer": texts.tokenizer(tmp_path), "length": texts.LENGTH, "pad": -1}
    with pytest.raises(errors.VanishedError, match=r"b\.jsonl: is a link to"):
        stoker.open(f"file://{tmp_path}/text/", cache=tmp_path / "cache", **how)
    source = stoker.open(f"file://{tmp_path}/text/", cache=tmp_path / "cache", on_error="skip", **how)
    assert [Path(one.path).name for one in source.skipped] == ["b.jsonl"]
    assert epoch(source)[0] == list(range(ROWS))


def test_packed_tokens_of_a_store_are_kept_here(store: Store, tmp_path: Path) -> None:
    texts.write(tmp_path / "text" / "a.jsonl", [texts.words(i, texts.LENGTH) for i in range(ROWS)])
    how: dict[str, Any] = {"length": texts.LENGTH, "pack": True}
    stoker.open(tmp_path / "text", tokenizer=texts.tokenizer(tmp_path), cache=store.root / "tokens", **how)
    for left in (store.root / "tokens").iterdir():
        if left.suffix != ".tokens" and left.is_file():
            left.unlink()
    source = opened(store, "tokens/*.tokens", cache=tmp_path / "cache", **how)
    assert epoch(source)[0] == list(range(ROWS))
