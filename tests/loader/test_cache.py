"""The cache tier: verified, shared, bounded, and no worse than nothing whatever happens to it."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from loader.kept import kept, segments, used_bytes
from loader.sources import SIDE, access, check, pictures
from stoker import errors
from stoker.loader import cache as cache_module
from stoker.loader.cache import Cache, Shelf
from stoker.loader.claims import Claims
from stoker.loader.front import Loader
from stoker.loader.scratch import Scratch
from stoker.loader.source.manifest import Manifest
from stoker.sim.store import Store

ROWS = 80


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    pictures(tmp_path / "bucket", [30, 50])
    with Store(tmp_path / "bucket") as started:
        yield started


def opened(store: Store, cache: Path, **how: Any) -> Any:
    return stoker.open(f"s3://{store.bucket}/", size=SIDE, store_options=access(store), cache=cache, hedge=False, **how)


def read(source: Any, epochs: int = 1, **how: Any) -> Any:
    with Loader(source, 8, True, **how) as loader:
        for _ in range(epochs):
            assert sorted(i for batch in loader for i in check(batch)) == list(range(ROWS))
        return loader.stats().remote


def fill(cache: Cache, objects: list[tuple[int, bytes]]) -> None:
    with closing(cache.writer()) as writer:
        cache.write(writer, objects)


def test_the_first_epoch_fills_it_and_later_ones_and_later_runs_ask_for_nothing(store: Store, tmp_path: Path) -> None:
    figures = read(opened(store, tmp_path / "cache"), epochs=3)
    assert figures.cache_kept_share == 1.0
    assert store.stats()["reads"] == ROWS
    assert store.stats()["lists"] == 1
    assert read(opened(store, tmp_path / "cache")).requests == 0
    assert store.stats()["lists"] == 1
    assert len(kept(tmp_path / "cache")) == ROWS


def test_an_epoch_that_is_all_there_starts_no_thread_that_asks(store: Store, tmp_path: Path) -> None:
    def asking() -> set[str]:
        return {thread.name for thread in threading.enumerate()} & {"stoker-remote", "stoker-settle"}

    seen = []
    for _ in range(2):
        with Loader(opened(store, tmp_path / "cache"), 8, True) as loader:
            seen.append([asking() for _ in loader])
        assert not asking()
    assert all(seen[0])
    assert not any(seen[1])


def test_closing_leaves_no_file_of_it_open(store: Store, tmp_path: Path) -> None:
    def still_open() -> list[str]:
        found = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return [path for path in found if str(tmp_path / "cache") in path]

    source = opened(store, tmp_path / "cache")
    for _ in range(2):
        with Loader(source, 8, True) as loader:
            for _ in loader:
                pass
            assert still_open()
        assert not still_open()
        with Loader(source, 8, True) as loader:
            next(iter(loader))
        assert not still_open()


@pytest.mark.parametrize("harm", ["flip", "swap", "cut", "empty", "grow", "gone", "no index", "torn index"])
def test_what_is_damaged_is_found_on_the_first_read_after_a_start_and_replaced(
    store: Store, tmp_path: Path, harm: str
) -> None:
    read(opened(store, tmp_path / "cache"))
    held = kept(tmp_path / "cache")
    last = max(held, key=lambda one: one.offset)
    index, whole = last.path.with_name("index"), last.path.read_bytes()
    lost, seen = {"flip": 1, "swap": 1, "cut": 1, "grow": 0, "torn index": 1}.get(harm, ROWS), 0
    if harm == "flip":
        held[7].overwrite(bytes([held[7].read()[0] ^ 1]))
        seen = 1
    elif harm == "swap":  # whole, and another object's
        one, other = next((a, b) for a in held for b in held if a.size == b.size and a != b)
        one.overwrite(other.read())
        seen = 1
    elif harm == "torn index":  # as a disk leaves it that was full in the middle of an entry
        entries = index.read_bytes()
        index.write_bytes(entries[:-10])
    elif harm in ("gone", "no index"):
        (index if harm == "no index" else last.path).unlink()
    else:
        last.path.write_bytes({"cut": whole[:-9], "empty": b"", "grow": whole + b"x"}[harm])
        seen = {"cut": 1, "empty": ROWS, "grow": 0}[harm]
    figures = read(opened(store, tmp_path / "cache"))
    assert store.stats()["reads"] == ROWS + lost
    assert figures.cache_rejected == seen
    assert read(opened(store, tmp_path / "cache")).requests == 0


def test_what_vanishes_in_mid_run_costs_nothing_but_another_download(store: Store, tmp_path: Path) -> None:
    source = opened(store, tmp_path / "cache")
    with Loader(source, 8, True) as loader:
        for epoch in range(3):
            assert sorted(i for batch in loader for i in check(batch)) == list(range(ROWS))
            if epoch == 0:
                for path in segments(tmp_path / "cache"):
                    path.unlink()
    read(source)
    assert store.stats()["reads"] > ROWS
    assert read(opened(store, tmp_path / "cache")).cache_rejected == 0
    assert len(kept(tmp_path / "cache")) == ROWS


def test_files_of_the_layout_before_are_not_read_and_go(store: Store, tmp_path: Path) -> None:
    """One file for each object, with a footer that began with stokerC1."""
    cache = tmp_path / "cache"
    opened(store, cache)
    home = next(cache.glob("*/segments")).parent
    for folder in ("objects/ab", "parts"):
        (home / folder).mkdir(parents=True)
        (home / folder / "ab12").write_bytes(b"old")
    assert read(opened(store, cache)).requests == ROWS
    assert {path.name for path in home.iterdir() if path.is_dir()} == {"segments"}


def test_over_budget_a_fixed_subset_stays_and_each_epoch_asks_for_the_rest(store: Store, tmp_path: Path) -> None:
    pictures(store.root / "more", [1, 1])  # two directories deep: other keys
    big = store.root / "c000" / "big.png"
    rng = np.random.default_rng(0)
    from PIL import Image

    Image.fromarray(rng.integers(0, 255, (700, 700, 3), np.uint8)).save(big)
    source = opened(store, tmp_path / "cache", cache_bytes="1MiB", requests=2)  # so that it reads little ahead
    share = source.remote().cache_kept_share
    with Loader(source, 8, True) as loader:
        for _ in loader:
            pass
        first = kept(tmp_path / "cache")
        reads = store.stats()["reads"]
        for _ in range(3):
            for _ in loader:
                pass
    assert 0 < share < 1
    assert kept(tmp_path / "cache") == first
    lacking = ROWS + 3 - len(first)
    assert store.stats()["reads"] - reads <= 4 * lacking  # three epochs, and the head of the next
    assert used_bytes(tmp_path / "cache") <= 1 << 20


def test_the_subset_that_a_budget_keeps_is_the_same_everywhere_and_within_it() -> None:
    manifest = Manifest.of("s3://b/", [{"path": f"k{i:05}", "size": 1000 + i % 7} for i in range(5000)])
    for budget in (0, 10_000, 5_000_000, 10**9):
        keep = cache_module.kept(manifest, budget)
        assert (manifest.sizes[keep] + 4096).sum() <= budget
        assert keep.all() == (budget == 10**9)
        np.testing.assert_array_equal(keep, cache_module.kept(manifest, budget))
    staged = np.array([5, 17, 4000])
    assert cache_module.kept(manifest, 20_000, staged)[staged].all()


def test_a_smaller_budget_evicts_and_other_sources_leave_only_the_rest(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    for number in range(300, 700):
        (store.root / "c001" / f"{number:05}.png").write_bytes((store.root / "c000" / "00001.png").read_bytes())
    with Loader(opened(store, cache, cache_bytes="4MiB"), 8) as loader:
        for _ in loader:
            pass
    before = len(kept(cache))
    assert before == ROWS + 400
    source = opened(store, cache, cache_bytes="1MiB")
    assert 0 < len(kept(cache)) < before
    assert source.remote().cache_kept_share < 1
    other: Any = stoker.open("s3://data/c001/", size=SIDE, store_options=access(store), cache=cache, cache_bytes="1MiB")
    assert other.remote().cache_kept_share < 0.1
    assert "of other sources" in caplog.text


SCRIPT = textwrap.dedent("""
    import sys, stoker
    from pathlib import Path
    from loader.sources import SIDE, check
    endpoint, cache, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    options = {"endpoint": endpoint, "region": "x", "access_key_id": "a", "secret_access_key": "b"}
    data = stoker.open("s3://data/", size=SIDE, store_options=options, cache=cache, cache_bytes="1GB", hedge=False)
    print("open", flush=True)
    sys.stdin.readline()
    rank, world = (int(n) for n in sys.argv[4].split("/"))
    with stoker.Loader(data, 4, True, rank=rank, world_size=world) as loader:
        for _ in range(epochs):
            for batch in loader:
                check(batch)
                print("batch", flush=True)
        print("done", flush=True)
        sys.stdin.readline()
    print(loader.stats().remote.cache_off, loader.stats().remote.requests)
""")


def start(store: Store, cache: Path, epochs: int = 1, ranks: str = "0/1", **how: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCRIPT, store.endpoint, str(cache), str(epochs), ranks]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=os.environ | {"PYTHONPATH": paths}, **pipes, **how)


@pytest.mark.parametrize("ranks", [("0/1", "0/1"), ("0/2", "1/2")])
def test_processes_and_ranks_that_share_it_download_each_object_once(tmp_path: Path, ranks: tuple[str, ...]) -> None:
    pictures(tmp_path / "bucket", [30, 50])
    with Store(tmp_path / "bucket", latency_s=0.02) as store:
        running = [start(store, tmp_path / "cache", 3, rank) for rank in ranks]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in running:  # one that ended would break off what it brings for its next epoch
            assert process.stdout is not None
            assert "done\n" in process.stdout
        for process in running:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            assert out.splitlines()[-1].startswith("None")
        counts = store.stats()
    assert counts["lists"] == 1
    assert counts["reads"] - sum(counts["faults"].values()) == ROWS


@pytest.mark.slow
def test_kill_9_at_any_point_leaves_a_cache_that_is_right(tmp_path: Path) -> None:
    pictures(tmp_path / "bucket", [30, 50])
    cache = tmp_path / "cache"
    with Store(tmp_path / "bucket", latency_s=0.005) as store:
        for batches in (1, 4, 12):
            process = start(store, cache)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            for _ in range(1 + batches):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            process.communicate()
        next(cache.glob("*/segments")).joinpath("00000000000000ff").write_bytes(b"half")
        figures = read(opened(store, cache))
    assert figures.cache_rejected == 0
    assert figures.requests < ROWS


@pytest.mark.parametrize("file_bytes", [40, 3000])
def test_a_disk_that_takes_no_more_is_told_once_and_loading_goes_on(
    store: Store, tmp_path: Path, file_bytes: int
) -> None:
    """A real refusal of the system to write: files of this process may not grow beyond a few bytes."""
    cache = tmp_path / "cache"
    opened(store, cache)  # the listing is there

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    process = start(store, cache, 2, preexec_fn=limit)
    out, err = process.communicate("go\n", timeout=120)
    assert process.returncode == 0, err
    assert "File too large" in out.splitlines()[-1]
    assert err.count("nothing more is written to the cache") == 1
    assert store.stats()["reads"] >= 2 * ROWS - len(kept(cache))
    assert bool(kept(cache)) == (file_bytes == 3000)
    assert used_bytes(cache) == sum(one.size for one in kept(cache))
    held = len(kept(cache))
    figures = read(opened(store, cache))
    assert (figures.cache_rejected, figures.requests) == (0, ROWS - held)


@pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0,
    reason="mounting a small disk needs user namespaces",
)
def test_a_full_disk_is_told_once_and_loading_goes_on(store: Store, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = [sys.executable, "-c", SCRIPT, store.endpoint, str(disk / "cache"), "2", "0/1"]
    mount = f'mount -t tmpfs -o size=16k none {disk} && exec "$@"'
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", *command],
        input="go\n",
        text=True,
        capture_output=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert found.returncode == 0, found.stderr
    assert "No space left on device" in found.stdout.splitlines()[-1]
    assert found.stderr.count("nothing more is written to the cache") == 1


def test_a_cache_that_cannot_be_made_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.UsageError, match=r"cache is .*file, which cannot be used"):
        opened(store, tmp_path / "file")


@pytest.mark.parametrize(
    "key", ["../../outside.jpg", "/etc/passwd.jpg", "a/../../b.jpg", "//x.jpg", "c\\..\\d.jpg", "é" * 300]
)
def test_whatever_the_key_its_file_stays_in_the_cache(tmp_path: Path, key: str) -> None:
    manifest = Manifest.of("s3://b/", [{"path": key, "size": 4, "e_tag": '"x"'}])
    cache = Cache(Shelf(tmp_path / "cache", "s3://b/"), manifest, np.ones(1, bool))
    fill(cache, [(0, b"data")])
    assert cache.off is None
    view = cache.read(0, Scratch(), cache.files())
    assert view is not None
    assert bytes(view) == b"data"
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}


def test_a_claim_excludes_other_streams_and_ends_with_its_owner(tmp_path: Path) -> None:
    one, two = Claims(tmp_path / "claims"), Claims(tmp_path / "claims")
    assert one.take("ab" * 20)
    assert not one.take("ab" * 20)
    assert not two.take("ab" * 20)
    assert two.take("cd" * 20)
    one.release("ab" * 20)
    assert two.take("ab" * 20)
    two.close()
    assert one.take("cd" * 20)
    one.close()


def test_a_process_that_dies_gives_its_claims_back(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from stoker.loader.claims import Claims
claims = Claims(Path({str(tmp_path / "claims")!r}))
assert claims.take("ab" * 20)
print("taken", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    mine = Claims(tmp_path / "claims")
    assert not mine.take("ab" * 20)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while not mine.take("ab" * 20):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    mine.close()


BODY_BYTES = 1000


def shelved(home: Path, rows: int, keep: float = 1.0) -> Cache:
    """A cache of objects that all have one size, of which it keeps a share."""
    manifest = Manifest.of("s3://b/", [{"path": f"{row:05}", "size": BODY_BYTES, "e_tag": "t"} for row in range(rows)])
    return Cache(Shelf(home, "s3://b/"), manifest, np.arange(rows) < keep * rows)


def body(row: int) -> bytes:
    return row.to_bytes(4, "big") * (BODY_BYTES // 4)


def holds(cache: Cache, rows: int) -> list[int]:
    """The rows that can be read, each of which has to be right."""
    found, files = [], cache.files()
    lacking = set(cache.lacking(np.arange(rows)).tolist())
    for row in sorted(set(range(rows)) - lacking):
        view = cache.read(row, Scratch(), files)
        if view is not None:
            assert bytes(view) == body(row)
            found.append(row)
    return found


@pytest.mark.parametrize("spare", [0, 100 * BODY_BYTES])
def test_evicting_leaves_what_is_kept_and_frees_the_rest(tmp_path: Path, spare: int) -> None:
    fill(shelved(tmp_path, 100), [(row, body(row)) for row in range(100)])
    other = shelved(tmp_path, 100)  # as another process sees it, that has read all of it
    assert len(holds(other, 100)) == 100
    small = shelved(tmp_path, 100, keep=0.3)
    assert small.evict(30 * (BODY_BYTES + 36) + spare) == 70
    assert holds(shelved(tmp_path, 100), 100) == list(range(30))
    assert used_bytes(tmp_path) <= 30 * (BODY_BYTES + 36) + spare
    assert set(range(30)) <= set(holds(other, 100) + holds(other, 100))  # what has moved is found at a second look
    assert other.rejected == 0
    assert shelved(tmp_path, 100, keep=0.0).evict(0) == 30
    assert not segments(tmp_path)


def test_what_is_written_while_another_process_evicts_is_kept(tmp_path: Path) -> None:
    rows = 3000
    cache = shelved(tmp_path, rows)
    with closing(cache.writer()) as writer:
        cache.write(writer, [(row, body(row)) for row in range(500)])
        assert shelved(tmp_path, rows, keep=0.1).evict(0) == 200
        for row in range(500, rows):
            cache.write(writer, [(row, body(row))])
    found = holds(shelved(tmp_path, rows), rows)
    assert found[:300] == list(range(300))
    assert found[-1000:] == list(range(rows - 1000, rows))  # it takes a MB to see that its segment is gone
    assert not set(found) & set(range(300, 500))


def test_what_another_process_brings_is_seen_also_by_who_was_first(tmp_path: Path) -> None:
    first = shelved(tmp_path, 4)
    assert len(first.lacking(np.arange(4))) == 4  # when there was no index at all
    with closing(first.writer()) as mine:
        first.write(mine, [(0, body(0))])
        assert not first.came(1, mine.index_bytes())
        fill(shelved(tmp_path, 4), [(1, body(1))])
        assert first.came(1, mine.index_bytes())
        assert not first.came(2, mine.index_bytes())
    assert holds(first, 4) == [0, 1]


def test_a_write_that_fails_half_way_spoils_nothing_written_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = shelved(tmp_path, 3)
    with closing(cache.writer()) as writer:
        cache.write(writer, [(0, body(0))])
        real = os.writev

        def full(file: int, parts: Any) -> int:
            real(file, [parts[0][:7]])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "writev", full)
        cache.write(writer, [(1, body(1))])
        monkeypatch.undo()
        assert cache.off is not None
        cache.off = None  # another thread was past this when the first one failed
        cache.write(writer, [(2, body(2))])
    assert holds(cache, 3) == holds(shelved(tmp_path, 3), 3) == [0, 2]


def test_an_index_of_any_length_says_the_last_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.loader.segments._FRESH", 8)
    reader = shelved(tmp_path, 60)
    for first in range(0, 60, 5):
        fill(shelved(tmp_path, 60), [(row, b"?" * BODY_BYTES) for row in range(first, first + 5)])
        fill(shelved(tmp_path, 60), [(row, body(row)) for row in range(first, first + 5)])
        assert holds(reader, 60) == list(range(first + 5))
    assert holds(shelved(tmp_path, 60), 60) == list(range(60))
