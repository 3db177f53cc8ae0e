"""Packing what lies in a store: the bytes are those of packing the same files here, whatever the store does."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from click.testing import CliRunner

from loader.scans import write_tiff, write_zarr
from loader.sources import photo, records
from loader.texts import tokenizer
from pack.test_pack import force_disk, make, make_images, make_records, small, tree
from stoker import errors
from stoker.commands.pack import pack
from stoker.pack import bring, execute, images, plan, stores
from stoker.pack.kinds import plan_for
from stoker.pack.plan import Options
from stoker.pack.staging import MANIFEST, verify
from stoker.sim.store import Store

MEMORY = 2 << 30


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store of what is in tmp_path/src, named by the environment as users do."""
    (tmp_path / "src").mkdir()
    with served(tmp_path, monkeypatch) as store:
        yield store


@contextmanager
def served(folder: Path, patch: pytest.MonkeyPatch, **how: Any) -> Iterator[Store]:
    with Store(folder / "src", **how) as store:
        for name, value in access(store).items():
            patch.setenv(name, value)
        yield store


def access(store: Store) -> dict[str, str]:
    told = {"ENDPOINT_URL": store.endpoint, "REGION": "x", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    return {f"AWS_{name}": value for name, value in told.items()}


def packed(folder: Path) -> dict[str, str]:
    """Every file but the one that names the sources, and what that says of them."""
    verify(folder, lambda _: None)
    found = tree(folder)
    del found[MANIFEST]
    told = json.loads((folder / MANIFEST).read_text())
    told["settings"].pop("root", None)
    del told["plan"]
    return {**found, "told": json.dumps(told)}


def run(given: str, place: Path, options: Options, **how: Any) -> dict[str, str]:
    assert execute.run(plan_for([given], options), place, memory_bytes=MEMORY, **how)
    assert not place.with_name(f"{place.name}.packing").exists()
    return packed(place)


CASES = [
    *((kind, shuffle, False) for kind in ("records", "rows", "text") for shuffle in (False, True)),
    *((kind, True, True) for kind in ("records", "rows", "text")),
    *(("images", shuffle, False) for shuffle in (False, True)),
]


@pytest.mark.parametrize(("kind", "shuffle", "on_disk"), CASES)
def test_the_bytes_are_those_of_the_same_files_here(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shuffle: bool, on_disk: bool
) -> None:
    options = small(shuffle=shuffle, seed=3, shard_bytes=60, **make(kind, tmp_path, [23, 1, 17]))
    if on_disk:
        force_disk(monkeypatch)
    here = run(str(tmp_path / "src"), tmp_path / "here", options)
    assert run(f"s3://{store.bucket}/", tmp_path / "there", options) == here
    assert len(here) > 3


def test_images_become_smaller_in_the_folders_of_their_keys(store: Store, tmp_path: Path) -> None:
    keys = ("cat/wide.jpg", "cat/deep/tall.JPEG", "dog/wide.png", "alone.jpg", "dog/no image.txt")
    for number, key in enumerate(keys):
        (tmp_path / "src" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / key).write_bytes(photo(number, 120, 90, "PNG" if key.endswith("png") else "JPEG"))
    here = run(str(tmp_path / "src"), tmp_path / "here", Options(size=(32,)))
    assert run(f"s3://{store.bucket}", tmp_path / "there", Options(size=(32,))) == here
    assert {"cat/wide.jpg", "cat/deep/tall.JPEG", "dog/wide.png.jpg", "alone.jpg", "told"} == here.keys()


@pytest.mark.parametrize("version", [2, 3])
def test_volumes_are_read_box_by_box(store: Store, tmp_path: Path, version: Literal[2, 3]) -> None:
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        voxels = random.integers(0, 2000, (20, 18, 22)).astype(np.uint16)
        path = tmp_path / "src" / "vol" / f"{name}.zarr"
        if version == 2:
            zarr.create_array(path, shape=voxels.shape, dtype="u2", chunks=(7, 8, 9), zarr_format=2)[:] = voxels
        else:
            write_zarr(path, voxels, (7, 8, 9))
    options = Options(patch=(4, 6, 6), compress=True)
    here = run(str(tmp_path / "src" / "vol"), tmp_path / "here", options)
    for given in ("vol/", "vol/*.zarr"):
        place = tmp_path / given[-2:].strip("*/.")
        assert run(f"s3://{store.bucket}/{given}", place, options) == here


def test_stacks_and_arrays_of_a_store_are_packed_together(store: Store, tmp_path: Path) -> None:
    voxels = np.random.default_rng(1).integers(0, 2000, (20, 18, 22)).astype(np.uint16)
    write_tiff(tmp_path / "src" / "a.tif", voxels)
    write_tiff(tmp_path / "src" / "b.tif", voxels, compression="zlib")
    write_zarr(tmp_path / "src" / "c.zarr", voxels, (7, 8, 9))
    here = run(str(tmp_path / "src"), tmp_path / "here", Options(patch=(4, 6, 6)))
    assert run(f"s3://{store.bucket}/", tmp_path / "there", Options(patch=(4, 6, 6))) == here
    assert {name.partition("/")[0] for name in here} == {"a.zarr", "b.zarr", "c.zarr", "told"}


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet", "a.txt", "a.jsonl"])
def test_text_of_every_kind_is_estimated_from_its_beginning(store: Store, tmp_path: Path, name: str) -> None:
    path, lines = tmp_path / "src" / name, [f"{i % 50} {i % 7} 3" for i in range(400_000)]
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"text": lines}), path, row_group_size=10_000)
    else:
        rows = lines if name.endswith("txt") else [json.dumps({"text": line}) for line in lines]
        path.write_bytes((gzip.compress if name.endswith("gz") else bytes)("\n".join(rows).encode()))
    options = Options(tokenizer=str(tokenizer(tmp_path)), shuffle=True, shard_bytes=100_000)
    there, here = (plan_for([given], options) for given in (f"s3://{store.bucket}/{name}", str(path)))
    assert there.outputs == here.outputs
    assert len(there.outputs) > 10
    if path.stat().st_size > 1 << 21:
        assert store.stats()["bytes_sent"] < path.stat().st_size / 2


def test_a_plan_asks_for_headers_and_footers_only(store: Store, tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / "src" / f"{number}.npy", records(0, 100_000))
    made = plan_for([f"s3://{store.bucket}/*.npy"], Options())
    assert made.rows == 300_000
    asked = store.stats()["bytes_sent"]
    assert asked < made.source_bytes / 50
    table = pa.table({"x": np.random.default_rng(0).random(2_000_000)})
    pq.write_table(table, tmp_path / "src" / "a.parquet", row_group_size=1_000_000)
    assert plan_for([f"s3://{store.bucket}/a.parquet"], Options(shuffle=True)).rows == 2_000_000
    assert store.stats()["bytes_sent"] - asked < (tmp_path / "src" / "a.parquet").stat().st_size / 2


def test_a_plan_with_addresses_goes_through_json_and_elsewhere(store: Store, tmp_path: Path) -> None:
    make_records(tmp_path / "src", [30, 20])
    made = plan_for([f"s3://{store.bucket}/0.npy", f"s3://{store.bucket}/1.npy"], small(shuffle=True))
    again = plan.from_json(plan.to_json(made), "here")
    assert again == made
    assert [file.path for file in made.files] == [f"s3://{store.bucket}/{number}.npy" for number in (0, 1)]
    execute.run(again, tmp_path / "one", memory_bytes=MEMORY)
    assert packed(tmp_path / "one") == run(str(tmp_path / "src"), tmp_path / "two", small(shuffle=True))


def test_a_plain_web_server_is_asked_for_what_is_named(store: Store, tmp_path: Path) -> None:
    make_records(tmp_path / "src", [30, 20])
    made = plan_for([f"{store.url}/0.npy", f"{store.url}/1.npy"], small())
    execute.run(made, tmp_path / "one", memory_bytes=MEMORY)
    assert packed(tmp_path / "one") == run(str(tmp_path / "src"), tmp_path / "two", small())
    with pytest.raises(errors.RemoteError, match=r"/data/: the store answers 501"):  # at once: it will never list
        plan_for([f"{store.url}/"], small())


def test_an_address_of_this_machine_is_a_path(tmp_path: Path) -> None:
    make_records(tmp_path / "src", [30, 20])
    here = run(str(tmp_path / "src"), tmp_path / "one", small())
    assert run(f"file://{tmp_path}/src", tmp_path / "two", small()) == here


def test_more_objects_than_are_looked_up_one_by_one_are_listed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(tmp_path / "src" / "in", [20, 20])
    (tmp_path / "src" / "in" / "more.txt").write_text("not planned")
    made = plan_for([f"s3://{store.bucket}/in"], Options(size=(4,), raw=True))
    monkeypatch.setattr(stores, "_NAMED_MOST", 10)
    execute.run(made, tmp_path / "dst", memory_bytes=MEMORY)
    assert store.stats()["heads"] == 0
    (tmp_path / "src" / "in" / "c001" / "0033.png").unlink()
    with pytest.raises(errors.VanishedError, match=r"^s3://data/in/c001/0033\.png: is not there any more; it was when"):
        execute.run(made, tmp_path / "other", memory_bytes=MEMORY)


@pytest.mark.parametrize("kind", ["records", "rows", "images"])
def test_keys_may_hold_what_addresses_do_not(store: Store, tmp_path: Path, kind: str) -> None:
    how = make(kind, tmp_path / "made", [5, 6])
    (tmp_path / "made" / "src").rename(tmp_path / "src" / "ü b#1%20+&=")
    for path in (tmp_path / "src").rglob("*.*"):
        path.rename(path.with_name(f"0 %41 é#?{path.name}"))
    options = small(**how)
    here = run(str(tmp_path / "src"), tmp_path / "here", options)
    assert run(f"s3://{store.bucket}/", tmp_path / "there", options) == here
    inside = f"s3://{store.bucket}/{quote('ü b#1%20+&=')}/"
    assert plan_for([inside], options).files == plan_for([f"s3://{store.bucket}/"], options).files
    made = plan_for([inside], options)
    gone = max(path for path in (tmp_path / "src").rglob("*") if path.is_file())
    gone.unlink()
    with pytest.raises(errors.VanishedError) as told:
        execute.run(made, tmp_path / "other", memory_bytes=MEMORY)
    assert told.value.path == f"s3://{store.bucket}/{gone.relative_to(tmp_path / 'src')}"


# ---- faults


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


@pytest.mark.parametrize("kind", ["records", "rows", "text", "images", "volumes"])
@pytest.mark.parametrize("fault", [change, Path.unlink])
def test_what_changed_or_went_since_the_plan_is_refused_by_name(
    store: Store, tmp_path: Path, kind: str, fault: Callable[[Path], None]
) -> None:
    if kind == "volumes":
        write_zarr(tmp_path / "src" / "a.zarr", np.ones((8, 8, 8), np.uint8), (4, 4, 4))
        options = Options(patch=(4, 4, 4))
    else:
        options = small(**make(kind, tmp_path, [5, 6]))
    made = plan_for([f"s3://{store.bucket}/"], options)
    spoiled = max(path for path in (tmp_path / "src").rglob("*") if path.is_file())
    fault(spoiled)
    with pytest.raises(
        (errors.ChangedError, errors.VanishedError), match=r"^s3://data/[^ ]+: .*when the plan was|has"
    ) as told:
        execute.run(made, tmp_path / "dst", memory_bytes=MEMORY)
    assert told.value.path == made.files[-1].path
    assert not (tmp_path / "dst").exists()


@pytest.mark.parametrize("fault", [change, Path.unlink])
@pytest.mark.parametrize("kind", ["records", "rows", "text", "images"])
def test_what_changes_or_goes_while_it_runs_is_named_and_nothing_is_left(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, fault: Callable[[Path], None]
) -> None:
    made = plan_for([f"s3://{store.bucket}/"], small(**make(kind, tmp_path, [5, 6])))
    last = max(path for path in (tmp_path / "src").rglob("*") if path.is_file())
    kept = stores.Objects.expect

    def expect(self: Any, *args: Any) -> None:  # all was as planned when it was looked up
        fault(last)
        kept(self, *args)

    monkeypatch.setattr(stores.Objects, "expect", expect)
    kinds = errors.ChangedError if fault is change else errors.VanishedError
    with pytest.raises(kinds, match=r"^s3://data/[^ ]+: (has changed since the plan was made|the object is gone)"):
        execute.run(made, tmp_path / "dst", memory_bytes=MEMORY)
    assert not (tmp_path / "dst").exists()
    assert not (tmp_path / "dst.packing" / "source").exists()
    assert not [one for one in threading.enumerate() if one.name.startswith(("stoker-bring", "stoker-pack"))]


@pytest.mark.parametrize("fault", [change, Path.unlink])
def test_a_chunk_that_changes_or_goes_while_it_runs_is_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Path], None]
) -> None:
    write_zarr(tmp_path / "src" / "a.zarr", np.arange(512, dtype=np.uint16).reshape(8, 8, 8), (4, 4, 4))
    made = plan_for([f"s3://{store.bucket}/a.zarr"], Options(patch=(4, 4, 4)))
    chunk = min(one for one in (tmp_path / "src" / "a.zarr" / "c").rglob("*") if one.is_file())
    monkeypatch.setattr(stores.Volumes, "expect", lambda *_: fault(chunk))
    wanted = errors.ChangedError if fault is change else errors.VanishedError
    with pytest.raises(wanted, match=r"^s3://data/a\.zarr/c/0/0/0: (has changed since the plan|the object is gone)"):
        execute.run(made, tmp_path / "dst", memory_bytes=MEMORY)
    assert not (tmp_path / "dst").exists()


@pytest.mark.parametrize("kind", ["records", "rows", "text", "images"])
def test_bursts_of_errors_cuts_and_wrong_bytes_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    options = small(shuffle=True, **make(kind, tmp_path, [23, 1, 17]))
    here = run(str(tmp_path / "src"), tmp_path / "here", options)
    faults = [*(f"503:nth={nth}" for nth in (1, 2, 3)), "cut:nth=5", "corrupt:nth=7", "truncate:nth=9", "503:rate=0.1"]
    with served(tmp_path, monkeypatch, faults=faults) as store:
        assert run(f"s3://{store.bucket}/", tmp_path / "there", options) == here
        told = store.stats()["faults"]
    assert {"503", "cut", "corrupt", "truncate"} <= told.keys()


def test_objects_of_several_pieces_are_verified_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bring, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(bring, "_AHEAD", 3)
    make_records(tmp_path / "src", [300, 1, 400])
    here = run(str(tmp_path / "src"), tmp_path / "here", small(shard_bytes=3000))
    with served(tmp_path, monkeypatch, faults=["corrupt:nth=7"]) as store:
        assert run(f"s3://{store.bucket}/", tmp_path / "there", small(shard_bytes=3000)) == here
        assert store.stats()["faults"] == {"corrupt": 1}
    with served(tmp_path, monkeypatch, faults=["corrupt:rate=1"]) as store:
        made = plan_for([f"s3://{store.bucket}/2.npy"], small(shard_bytes=3000))
        with pytest.raises(errors.ChecksumError, match=r"^s3://data/2\.npy: its MD5 is [0-9a-f]{32}; "):
            execute.run(made, tmp_path / "bad", memory_bytes=MEMORY)
    assert not (tmp_path / "bad").exists()


def test_bad_data_is_named_by_its_address(store: Store, tmp_path: Path) -> None:
    (tmp_path / "src" / "a.jsonl").write_text('{"text": "1 2"}\nnot json\n')
    made = plan_for([f"s3://{store.bucket}/a.jsonl"], Options(tokenizer=str(tokenizer(tmp_path))))
    with pytest.raises(errors.CorruptError, match=r"^s3://data/a\.jsonl, row 1: line 2 is not JSON"):
        execute.run(made, tmp_path / "dst", memory_bytes=MEMORY)
    for name, data in {"empty.npy": b"", "no.npy": b"none", "empty.parquet": b"", "no.parquet": b"none"}.items():
        (tmp_path / "src" / name).write_bytes(data)
        with pytest.raises(errors.DataError, match=rf"^s3://data/{name}: "):
            plan_for([f"s3://{store.bucket}/{name}"], Options())


# ---- disk


def test_the_disk_holds_a_few_objects_at_a_time_and_each_is_brought_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_records(tmp_path / "src", [50] * 30)
    size = (tmp_path / "src" / "0.npy").stat().st_size
    made = plan_for([f"s3://{store.bucket}/"], small(shard_bytes=3 * size // 2))
    assert 15 < len(made.outputs) < 25
    before = store.stats()["reads"]
    monkeypatch.setattr(bring, "DISK_BYTES", 3 * size)
    from stoker.pack import records as layout

    kept, seen = layout.write, []

    def looks(*args: Any) -> Any:
        found = kept(*args)
        seen.append(len(list((tmp_path / "dst.packing" / "source").iterdir())))
        return found

    monkeypatch.setattr(layout, "write", looks)
    execute.run(made, tmp_path / "dst", memory_bytes=MEMORY, threads=2)
    assert len(seen) == len(made.outputs)
    assert max(seen) <= 3 + 2 * 2 + 1
    assert seen[-1] <= 2
    assert store.stats()["reads"] - before == 30
    assert not (tmp_path / "dst.packing").exists()


def test_room_for_what_is_brought_is_counted(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_records(tmp_path / "src", [500])
    made = plan_for([f"s3://{store.bucket}/"], Options())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=int(made.output_bytes * 1.5)))
    with pytest.raises(errors.DiskFullError, match="free some, or choose another"):
        execute.run(made, tmp_path / "dst", memory_bytes=MEMORY)


KILLED = """
import os, signal, sys
from pathlib import Path
from stoker.pack import execute, plan, staging, stores

kept, count = staging.Staging.finish_output, [0]

def finish(self, *args):
    found = kept(self, *args)
    count[0] += 1
    if count[0] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return found

staging.Staging.finish_output = finish
for name in sys.argv[1:]:
    pid = os.fork()
    if not pid:
        what = plan.from_json(Path(name, "plan.json").read_text(), "")
        execute.run(what, Path(name, "dst"), memory_bytes=2 << 30, threads=1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, name
"""


def test_killed_in_the_middle_it_goes_on_with_what_is_done(store: Store, tmp_path: Path) -> None:
    plans, here = {}, {}
    for kind, shuffle in {"records": False, "rows": True, "text": False, "images": True}.items():
        folder = tmp_path / "src" / kind
        options = small(shuffle=shuffle, shard_bytes=150, **make(kind, folder, [9, 9, 9, 9]))
        here[kind] = run(str(folder / "src"), tmp_path / kind / "here", options)
        plans[kind] = plan_for([f"s3://{store.bucket}/{kind}/src/"], options)
        (tmp_path / kind / "plan.json").write_text(plan.to_json(plans[kind]))
    subprocess.run([sys.executable, "-c", KILLED, *(str(tmp_path / kind) for kind in plans)], check=True)
    for kind, made in plans.items():
        place, left = tmp_path / kind / "dst", tmp_path / kind / "dst.packing"
        assert not place.exists()
        assert len((left / "done.jsonl").read_text().splitlines()) == 3 < len(made.outputs)
        (left / "source").mkdir(exist_ok=True)
        (left / "source" / "00000000.npy").write_text("half of it")
        assert execute.run(made, place, memory_bytes=MEMORY)
        assert packed(place) == here[kind]
        assert not left.exists()


# ---- the program


@contextmanager
def program(store: Store, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "stoker", "pack", *arguments, "--memory", "2GiB"]
    environment = {**os.environ, **access(store)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def test_the_program_packs_a_bucket(store: Store, tmp_path: Path) -> None:
    make_records(tmp_path / "src" / "train", [30, 20])
    with program(store, f"s3://{store.bucket}/train/", str(tmp_path / "dst"), "--shuffle") as done:
        out, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    assert "2 files" in out
    assert packed(tmp_path / "dst") == run(str(tmp_path / "src" / "train"), tmp_path / "here", Options(shuffle=True))
    gone = CliRunner().invoke(pack, [f"s3://{store.bucket}/trian/", str(tmp_path / "other")])
    assert isinstance(gone.exception, errors.NoDataError)
    assert str(gone.exception).startswith("no object matches s3://data/trian/; expected .npy, .parquet")


@pytest.mark.parametrize(("kind", "delay_s"), [("records", 1.0), ("volumes", 0.0)])  # work waits by then, or begins to
def test_stopped_while_the_store_is_slow_the_program_ends_at_once_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, delay_s: float
) -> None:
    (tmp_path / "src").mkdir()
    for number in range(4):
        if kind == "records":
            np.save(tmp_path / "src" / f"{number}.npy", records(number * 30_000, 30_000))
        else:
            write_zarr(tmp_path / "src" / f"{number}.zarr", np.full((99, 99, 99), number, np.uint8), (50, 50, 50))
    how = ["--patch", "16,16,16"] if kind == "volumes" else []
    with served(tmp_path, monkeypatch, connection_bytes_per_s=10_000) as store:
        begun = tmp_path / "dst.packing" / ("source" if kind == "records" else "partial/0.zarr")
        with program(store, f"s3://{store.bucket}/", str(tmp_path / "dst"), *how) as stopped:
            while not begun.exists():
                assert stopped.poll() is None, stopped.communicate()
                time.sleep(0.01)
            time.sleep(delay_s)
            stopped.send_signal(signal.SIGINT)
            _, err = stopped.communicate(timeout=30)  # all of it would take longer
    assert stopped.returncode == 130, err
    assert "run the same command again" in err
    assert "Traceback" not in err
    assert not (tmp_path / "dst.packing" / "source").exists()
    options = Options(patch=(16, 16, 16)) if kind == "volumes" else Options()
    with served(tmp_path, monkeypatch) as store:
        there = run(f"s3://{store.bucket}/", tmp_path / "dst", options)
    assert there == run(str(tmp_path / "src"), tmp_path / "here", options)


def test_a_store_as_destination_is_refused(tmp_path: Path) -> None:
    make_records(tmp_path / "src", [3])
    done = CliRunner().invoke(pack, [str(tmp_path / "src"), "s3://bucket/out"])
    assert isinstance(done.exception, errors.UsageError)
    assert str(done.exception).startswith("DST is s3://bucket/out; expected a folder of this machine")


# ---- names


def test_keys_that_lead_elsewhere_are_refused(store: Store, tmp_path: Path) -> None:
    make_images(tmp_path / "src", [2])
    made = json.loads(plan.to_json(plan_for([f"s3://{store.bucket}/"], Options(size=(4,)))))
    for key in ("c000/../../evil.png", "c000//0000.png", "/etc/0000.png", "c000/./0000.png"):
        with pytest.raises(errors.UsageError, match="cannot be the name of a file"):
            images._parts("s3://data", f"s3://data/{key}")
    made["files"][1]["path"] = "s3://data/../0001.png"
    with pytest.raises(errors.UsageError, match=r"the plan names s3://data/\.\./0001\.png, which is no address"):
        execute.run(plan.from_json(json.dumps(made), "here"), tmp_path / "dst", memory_bytes=MEMORY)
    assert not (tmp_path / "dst").exists()


def test_what_is_an_image_and_a_folder_is_refused() -> None:
    with pytest.raises(errors.UsageError, match=r"a\.jpg would be an image and a folder"):
        list(images._folders(["a.jpg", "a.jpg/b.jpg"], 1.0))


def test_two_stores_or_a_store_and_this_machine_are_refused(store: Store, tmp_path: Path) -> None:
    make_records(tmp_path / "src", [3])
    for given in ([f"s3://{store.bucket}/0.npy", str(tmp_path / "src")], ["s3://a/0.npy", "s3://b/0.npy"]):
        with pytest.raises(errors.UsageError, match="are two stores"):
            plan_for(given, Options())
    with pytest.raises(errors.UsageError, match="the scheme ftp://"):
        plan_for(["ftp://host/0.npy"], Options())
