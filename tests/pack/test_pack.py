"""Packing: the right rows, the same bytes however it is carried out, and nothing lost to a kill."""

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stoker
from loader.scans import write_tiff, write_zarr
from loader.sources import SIDE, check, picture, png, records
from loader.texts import tokenizer, words, write
from stoker import errors
from stoker.loader.front import Loader
from stoker.loader.source.text import TextSource
from stoker.pack import execute, keys, plan
from stoker.pack.kinds import layout, plan_for
from stoker.pack.plan import Options
from stoker.pack.staging import MANIFEST, verify

law = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MEMORY = 2 << 30


def make_records(folder: Path, sizes: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, rows in enumerate(sizes):
        np.save(folder / f"{number}.npy", records(first, rows))
        first += rows


def make_rows(folder: Path, sizes: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, rows in enumerate(sizes):
        ids = range(first, first + rows)
        columns = {"id": list(ids), "word": [f"w{i}" * (i % 4) for i in ids], "many": [list(range(i % 3)) for i in ids]}
        schema = pa.schema({"id": pa.int64(), "word": pa.string(), "many": pa.list_(pa.int32())})
        pq.write_table(pa.table(columns, schema), folder / f"{number}.parquet", row_group_size=3)
        first += rows


def make_text(folder: Path, sizes: list[int]) -> None:
    first = 0
    for number, rows in enumerate(sizes):
        write(folder / f"{number}.jsonl", [words(first + i) for i in range(rows)])
        first += rows


def make_images(folder: Path, sizes: list[int]) -> None:
    first = 0
    for number, rows in enumerate(sizes):
        (folder / f"c{number:03}").mkdir(parents=True)
        for i in range(first, first + rows):
            (folder / f"c{number:03}" / f"{i:04}.png").write_bytes(png(i))
        first += rows


def small(**options: Any) -> Options:
    """Options under which a few rows make several pieces and outputs."""
    return Options(**{"shard_bytes": 300, **options})


def tree(folder: Path) -> dict[str, str]:
    """Every file and its content."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def packed_ids(kind: str, folder: Path) -> list[int]:
    """The rows of a result in order, each compared with what its id says."""
    if kind == "records":
        with Loader(stoker.open(folder), 7) as loader:
            return [i for batch in loader for i in check(batch)]
    if kind == "rows":
        table = pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("*.parquet")))
        for row in table.to_pylist():
            i = row["id"]
            assert row == {"id": i, "word": f"w{i}" * (i % 4), "many": list(range(i % 3))}
        return [int(i) for i in table.column("id").to_pylist()]
    if kind == "images":
        known = {picture(i).transpose(2, 0, 1).tobytes(): i for i in range(200)}
        with Loader(stoker.open(folder), 7) as loader:
            return [known[np.asarray(image).tobytes()] for batch in loader for image in batch["image"]]
    source = stoker.open(folder, length=6)
    assert isinstance(source, TextSource)
    with Loader(source, 7) as loader:
        rows = [
            row[:length]
            for batch in loader
            for row, length in zip(batch["tokens"].tolist(), batch["lengths"], strict=True)
        ]
    assert all(row == words(row[0]) for row in rows)
    return [row[0] for row in rows]


def make(kind: str, folder: Path, sizes: list[int]) -> dict[str, Any]:
    makers = {"records": make_records, "rows": make_rows, "text": make_text, "images": make_images}
    makers[kind](folder / "src", sizes)
    if kind == "images":
        return {"size": (SIDE, SIDE), "raw": True}
    return {"tokenizer": str(tokenizer(folder))} if kind == "text" else {}


KINDS = pytest.mark.parametrize("kind", ["records", "rows", "text", "images"])


@KINDS
@law
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4), shuffle=st.booleans(), on_disk=st.booleans())
def test_every_row_is_there_once_and_shuffled_only_if_asked(
    kind: str, sizes: list[int], shuffle: bool, on_disk: bool
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        options = small(shuffle=shuffle, seed=3, **make(kind, folder, sizes))
        what = plan_for([str(folder / "src")], options)
        patch.setattr(os, "fsync", lambda _: None)  # a slow disk is not the subject here
        if on_disk:
            force_disk(patch)
        assert execute.run(what, folder / "dst", memory_bytes=MEMORY)
        rows = sum(sizes)
        got = packed_ids(kind, folder / "dst")
        assert sorted(got) == list(range(rows))
        if not shuffle:
            assert got == list(range(rows))
        elif kind != "text":  # sorted by key, whatever the pieces were
            assert got == np.argsort(keys.keys(3, 0, rows)).tolist()
        assert json.loads((folder / "dst" / MANIFEST).read_text())["rows"] == rows
        verify(folder / "dst", lambda _: None)
        assert not (folder / "dst.packing").exists()


def force_disk(patch: pytest.MonkeyPatch) -> None:
    """Let the first pass of a shuffle spill to disk, however little there is."""
    plain = execute._Run.__init__

    def on_disk(self: Any, *args: Any) -> None:
        plain(self, *args)
        self.in_memory = False

    patch.setattr(execute._Run, "__init__", on_disk)


@KINDS
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_plan_that_went_through_json_gives_the_same_bytes_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shuffle: bool
) -> None:
    options = small(shuffle=shuffle, **make(kind, tmp_path, [40, 1, 25]))
    what = plan_for([str(tmp_path / "src")], options)
    again = plan.from_json(plan.to_json(what), "here")
    assert again == what
    execute.run(what, tmp_path / "one", memory_bytes=MEMORY, threads=1)
    force_disk(monkeypatch)
    code = (
        "import sys; from pathlib import Path; from stoker.pack import execute, plan;"
        "execute.run(plan.from_json(Path(sys.argv[1]).read_text(), ''), Path(sys.argv[2]), memory_bytes=2 << 30)"
    )
    (tmp_path / "plan.json").write_text(plan.to_json(what))
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "plan.json"), str(tmp_path / "two")], check=True)
    execute.run(again, tmp_path / "three", memory_bytes=MEMORY, threads=3)
    assert tree(tmp_path / "one") == tree(tmp_path / "two") == tree(tmp_path / "three")


@pytest.mark.parametrize("kind", ["records", "rows"])
def test_every_shuffled_shard_has_a_row_however_large_rows_are(tmp_path: Path, kind: str) -> None:
    make(kind, tmp_path, [20])
    for seed in range(5):
        what = plan_for([str(tmp_path / "src")], small(shuffle=True, seed=seed, shard_bytes=1))
        assert 1 < len(what.outputs) < 20  # a row each was asked for
        place = tmp_path / f"dst{seed}"
        execute.run(what, place, memory_bytes=MEMORY)
        assert len(stoker.open(place)) == 20
        assert sorted(packed_ids(kind, place)) == list(range(20))


@pytest.mark.parametrize("shuffle", [False, True])
def test_names_of_any_kind_stay_as_they_are(tmp_path: Path, shuffle: bool) -> None:
    (tmp_path / "npy").mkdir()
    fields = np.array([(i, i * 2) for i in range(9)], [("字段", "<i4"), ("é", "<i2")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy says that it uses version 3.0 of its format
        np.save(tmp_path / "npy" / "0.npy", fields)
    (tmp_path / "pq").mkdir()
    columns = {"__key__": list(range(9)), "x.y": list(range(9, 18))}
    pq.write_table(pa.table(columns), tmp_path / "pq" / "0.parquet")
    for name in ("npy", "pq"):
        execute.run(
            plan_for([str(tmp_path / name)], Options(shuffle=shuffle)), tmp_path / f"{name}.dst", memory_bytes=MEMORY
        )
    [packed] = (tmp_path / "npy.dst").glob("*.npy")
    got = np.load(packed)
    assert got.dtype == fields.dtype
    assert np.array_equal(np.sort(got), fields)
    assert len(stoker.open(tmp_path / "npy.dst")) == 9
    [packed] = (tmp_path / "pq.dst").glob("*.parquet")
    table = pq.read_table(packed)
    assert table.sort_by("__key__").to_pydict() == columns


def test_keys_are_unique_and_their_order_is_uniform() -> None:
    found = keys.keys(5, 0, 100_000)
    assert len(np.unique(found)) == 100_000
    np.testing.assert_array_equal(np.concatenate([keys.keys(5, 0, 10), keys.keys(5, 10, 30)]), found[:30])
    assert not (keys.keys(6, 0, 1000) == found[:1000]).any()
    counts = keys.counts(5, 100_000, 10)
    assert counts.sum() == 100_000
    assert np.abs(counts - 10_000).max() < 6 * 100
    ranks = np.argsort(found)
    assert abs(np.corrcoef(ranks, np.arange(100_000))[0, 1]) < 0.02
    assert abs(np.corrcoef(ranks[1:], ranks[:-1])[0, 1]) < 0.02


KILL = """
    import os, shutil, signal, sys
    from pathlib import Path
    from stoker.pack import execute, plan, staging
    from pack.test_pack import force_disk, tree
    import pytest

    what = plan.from_json(Path(sys.argv[1]).read_text(), "")
    place = Path(sys.argv[2])
    patch = pytest.MonkeyPatch()
    force_disk(patch)
    os.fsync = lambda descriptor: None

    def counted(kept, at, count=[0]):
        def call(*args, **kwargs):
            for done in (False, True):
                count[0] += 1
                if count[0] == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if not done:
                    found = kept(*args, **kwargs)
            return found
        return call

    def child(at):
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        try:
            if at:
                for name in ("mkdir", "rename", "replace", "open"):
                    setattr(Path, name, counted(getattr(Path, name), at))
                # A kill loses nothing that was written, so the disk need not be waited for.
                os.fsync = counted(lambda descriptor: None, at)
                staging.shutil.rmtree = counted(shutil.rmtree, at)
            execute.run(what, place, memory_bytes=2 << 30, threads=1)
            os._exit(0)
        except BaseException as error:
            print("failed", at, repr(error), flush=True)
            os._exit(1)

    assert child(0) == 0
    expected = tree(place)
    shutil.rmtree(place)
    killed, at = 0, 1
    while (code := child(at)) == -9:
        killed += 1
        assert not place.exists() or tree(place) == expected, at
        assert child(0) == 0, at
        assert tree(place) == expected, at
        assert not place.with_name(place.name + ".packing").exists(), at
        shutil.rmtree(place)
        at += 1 + at // 4  # every early point, and later ones more and more sparsely
    assert code == 0, (at, code)
    print("killed", killed)
"""


@pytest.mark.slow
@KINDS
def test_killed_at_any_point_and_run_again_it_gives_the_same_bytes(tmp_path: Path, kind: str) -> None:
    sizes = [3, 2] if kind == "images" else [8, 4]  # each image is an output of its own
    options = small(shard_bytes=120, shuffle=True, **make(kind, tmp_path, sizes))
    what = plan_for([str(tmp_path / "src")], options)
    if kind != "text":
        assert len(what.pieces) > 1 or kind == "images"  # their order is settled in the plan
        assert len(what.outputs) > 1
    (tmp_path / "plan.json").write_text(plan.to_json(what))
    command = [sys.executable, "-c", textwrap.dedent(KILL), str(tmp_path / "plan.json"), str(tmp_path / "dst")]
    here = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=here)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) >= 12


def test_a_run_goes_on_with_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_records(tmp_path / "src", [40])
    what = plan_for([str(tmp_path / "src")], small())
    from stoker.pack import records as layout

    kept, calls = layout.write, []

    def fails(*args: Any) -> tuple[int, str]:
        calls.append(args[1])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return kept(*args)

    monkeypatch.setattr(layout, "write", fails)
    with pytest.raises(KeyboardInterrupt):
        execute.run(what, tmp_path / "dst", memory_bytes=MEMORY, threads=1)
    assert not (tmp_path / "dst").exists()
    execute.run(what, tmp_path / "dst", memory_bytes=MEMORY, threads=1)
    assert sorted(calls) == sorted([*range(len(what.outputs)), calls[3]])  # only the failed one twice
    assert packed_ids("records", tmp_path / "dst") == list(range(40))


def test_volumes_become_chunks_that_suit_the_patch(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {name: random.integers(1, 200, (20 + i, 24, 28), np.uint8) for i, name in enumerate("ab")}
    write_tiff(tmp_path / "src" / "a.tif", arrays["a"], photometric="minisblack")
    write_zarr(tmp_path / "src" / "b.zarr", arrays["b"], (20, 24, 28))
    for compress in (False, True):
        what = plan_for([str(tmp_path / "src")], Options(patch=(6, 8, 10), compress=compress))
        place = tmp_path / f"dst{compress}"
        execute.run(what, place, memory_bytes=MEMORY)
        execute.run(what, tmp_path / f"again{compress}", memory_bytes=MEMORY)
        assert tree(place) == tree(tmp_path / f"again{compress}")
        source = stoker.open(place, patch=(6, 8, 10), cache=tmp_path / "cache", patches=64)
        with Loader(source, 4) as loader:
            for batch in loader:
                for i, corner in enumerate(batch["corner"].tolist()):
                    cut = tuple(slice(a, a + part) for a, part in zip(corner, (6, 8, 10), strict=True))
                    expected = arrays["ab"[int(batch["volume"][i])]][cut]
                    np.testing.assert_array_equal(batch["patch"][i], expected)
            amplification = loader.stats().amplification
        assert amplification is not None
        assert amplification < 1.5
        verify(place, lambda _: None)


def test_a_destination_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    make_records(tmp_path / "src", [9])
    what = plan_for([str(tmp_path / "src")], small())
    (tmp_path / "dst").mkdir()
    assert execute.run(what, tmp_path / "dst", memory_bytes=MEMORY)  # an empty folder will do
    assert not execute.run(what, tmp_path / "dst", memory_bytes=MEMORY)
    other = plan_for([str(tmp_path / "src")], small(shuffle=True))
    with pytest.raises(errors.DestinationExistsError, match="holds something else"):
        execute.run(other, tmp_path / "dst", memory_bytes=MEMORY)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(errors.DestinationExistsError):
        execute.run(what, tmp_path / "file", memory_bytes=MEMORY)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_link_leads_to_the_destination(tmp_path: Path) -> None:
    make_records(tmp_path / "src", [9])
    what = plan_for([str(tmp_path / "src")], small())
    (tmp_path / "empty").mkdir()
    for target in ("empty", "missing"):
        link = tmp_path / f"to_{target}"
        link.symlink_to(tmp_path / target)
        assert execute.run(what, link, memory_bytes=MEMORY)
        assert link.is_symlink()
        assert packed_ids("records", tmp_path / target) == list(range(9))
        assert not execute.run(what, link, memory_bytes=MEMORY)
    assert not list(tmp_path.glob("*.packing"))


def test_a_source_that_changed_since_the_plan_is_refused(tmp_path: Path) -> None:
    make_records(tmp_path / "src", [9, 9])
    what = plan_for([str(tmp_path / "src")], small())
    np.save(tmp_path / "src" / "1.npy", records(50, 9))
    with pytest.raises(errors.ChangedError, match=r"1\.npy: has changed since the plan was made"):
        execute.run(what, tmp_path / "dst", memory_bytes=MEMORY)
    (tmp_path / "src" / "1.npy").unlink()
    with pytest.raises(errors.ChangedError, match=r"1\.npy: is not there any more"):
        execute.run(what, tmp_path / "dst", memory_bytes=MEMORY)
    assert not (tmp_path / "dst").exists()


def test_a_source_that_changes_between_two_runs_or_while_it_runs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_records(tmp_path / "src", [40])
    from stoker.pack import records as layout

    kept = layout.write

    def changes(*args: Any) -> tuple[int, str]:
        wrote = kept(*args)
        if args[1] == 2:
            np.save(tmp_path / "src" / "0.npy", records(50, 40))
        return wrote

    what = plan_for([str(tmp_path / "src")], small())
    monkeypatch.setattr(layout, "write", changes)
    with pytest.raises(errors.ChangedError, match=r"0\.npy: has changed"):
        execute.run(what, tmp_path / "dst", memory_bytes=MEMORY, threads=1)
    monkeypatch.setattr(layout, "write", kept)
    anew = plan_for([str(tmp_path / "src")], small())
    with pytest.raises(errors.ChangedError, match=r"since the pack in .*dst\.packing was begun"):
        execute.run(anew, tmp_path / "dst", memory_bytes=MEMORY)
    make_records(tmp_path / "src2", [40])
    other = plan_for([str(tmp_path / "src2")], small())
    with pytest.raises(errors.DestinationExistsError, match="unfinished pack of other files or with other options"):
        execute.run(other, tmp_path / "dst", memory_bytes=MEMORY)
    shutil.rmtree(tmp_path / "dst.packing")
    execute.run(anew, tmp_path / "dst", memory_bytes=MEMORY)


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(tmp_path: Path) -> None:
    make_records(tmp_path / "src", [4000])
    what = plan_for([str(tmp_path / "src")], Options(shard_bytes=40_000))
    (tmp_path / "plan.json").write_text(plan.to_json(what))
    code = """
        import resource, signal, sys
        from pathlib import Path
        from stoker.errors import DiskFullError
        from stoker.pack import execute, plan
        what = plan.from_json(Path(sys.argv[1]).read_text(), "")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        try:
            execute.run(what, Path(sys.argv[2]), memory_bytes=2 << 30)
        except DiskFullError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "plan.json"), str(tmp_path / "dst")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "no room for" in done.stdout
    assert "run the same command again to go on" in done.stdout
    assert not (tmp_path / "dst").exists()
    execute.run(what, tmp_path / "dst", memory_bytes=MEMORY)
    assert packed_ids("records", tmp_path / "dst") == list(range(4000))


def test_what_cannot_fit_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_records(tmp_path / "src", [40])
    what = plan_for([str(tmp_path / "src")], small())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(errors.DiskFullError, match="takes about 0 MB, and 0 MB are free"):
        execute.run(what, tmp_path / "dst", memory_bytes=MEMORY)
    assert not list(tmp_path.glob("dst*/out/*"))
    with pytest.raises(errors.UsageError, match="--memory is 1 MB; this needs at least"):
        execute.run(what, tmp_path / "dst", memory_bytes=1 << 20)


def test_damage_is_found_by_verifying(tmp_path: Path) -> None:
    make_records(tmp_path / "src", [40])
    what = plan_for([str(tmp_path / "src")], small())
    execute.run(what, tmp_path / "dst", memory_bytes=MEMORY, verify=True)
    path = tmp_path / "dst" / what.outputs[1].name
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(errors.CorruptError, match="does not match the manifest"):
        execute.run(what, tmp_path / "dst", memory_bytes=MEMORY, verify=True)
    path.unlink()
    with pytest.raises(errors.CorruptError, match="is not there"):
        execute.run(what, tmp_path / "dst", memory_bytes=MEMORY, verify=True)


def test_bad_sources_are_named_and_wrong_options_refused(tmp_path: Path) -> None:
    make_records(tmp_path / "rec", [9, 9])
    make_rows(tmp_path / "pq", [9])
    make_text(tmp_path / "txt", [9])
    make_images(tmp_path / "img", [2])
    write_zarr(tmp_path / "vol" / "a.zarr", np.ones((4, 4, 4), np.uint8))
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("rec", {"compress": True}, "records are mapped"),
        ("txt", {}, "is text; say how to tokenise it with --tokenizer"),
        ("txt", {"tokenizer": str(tokenizer(tmp_path)), "compress": True}, "tokens are mapped"),
        ("vol", {}, "is a volume|no file matches"),
        ("vol", {"patch": (2, 2, 2), "shuffle": True}, "leave --shuffle out"),
        ("vol", {"patch": (9, 9, 9)}, "smaller than the patch"),
        ("img", {}, "is an image; name the size to pack it at, such as --size 256"),
        ("img", {"raw": True}, "name their size too"),
        ("img", {"size": (4, 4)}, "--size is 4,4; expected one number, the shorter side"),
        ("img", {"size": (4, 4, 4), "raw": True}, "--size is 4,4,4; expected one number, or height,width"),
        ("img", {"size": (4,), "shuffle": True}, "leave --shuffle out, or add --raw"),
        ("img", {"size": (4,), "compress": True}, "leave --compress out"),
        ("img/c000/0000.png", {"size": (4,)}, "name one folder"),
        ("rec", {"size": (4,)}, "no image is below"),
        ("none", {}, "does not exist"),
        ("none", {"size": (4,)}, "name one folder"),
    ]
    for name, options, says in wrong:
        with pytest.raises(errors.StokerError, match=says):
            plan_for([str(tmp_path / name)], Options(**options))
    os.truncate(tmp_path / "rec" / "1.npy", 300)
    with pytest.raises(errors.TruncatedError, match=r"1\.npy, row \d: cut short"):
        plan_for([str(tmp_path / "rec")], Options())
    pq.write_table(pa.table({"other": [1]}), tmp_path / "pq" / "1.parquet")
    with pytest.raises(errors.OtherTypeError, match=r"1\.parquet: has the columns other int64; expected id int64"):
        plan_for([str(tmp_path / "pq")], Options())
    (tmp_path / "txt" / "0.jsonl").write_text('{"text": "1"}\n{"text"\n')
    what = plan_for([str(tmp_path / "txt")], Options(tokenizer=str(tokenizer(tmp_path))))
    with pytest.raises(errors.CorruptError, match=r"0\.jsonl, row 1: line 2 is not JSON"):
        execute.run(what, tmp_path / "dst", memory_bytes=MEMORY)
    version_9 = plan.to_json(what).replace('"version": 1', '"version": 9')
    for text, says in [("{}", "no plan"), ("nothing", "no plan"), (version_9, "version 9")]:
        with pytest.raises(errors.UsageError, match=says):
            plan.from_json(text, "here")
    evil = json.loads(plan.to_json(what))
    evil["outputs"][0]["name"] = "../../evil.tokens"
    with pytest.raises(errors.UsageError, match="expected a plain file name"):
        plan.from_json(json.dumps(evil), "here")


@pytest.mark.parametrize("name", ["new", "deep/new"])
def test_a_destination_inside_the_source_is_refused(tmp_path: Path, name: str) -> None:
    make_records(tmp_path / "src" / "deep", [9])
    what = plan_for([str(tmp_path / "src")], Options())
    for told in (what, plan.from_json(plan.to_json(what), "here")):
        with pytest.raises(errors.UsageError, match=r"new is inside .*src, .*name a folder outside") as caught:
            execute.run(told, tmp_path / "src" / name, memory_bytes=MEMORY)
        assert "\n" not in str(caught.value)
    assert len(list((tmp_path / "src").rglob("*"))) == 2
    files = plan_for([str(tmp_path / "src" / "deep" / "*.npy")], Options())
    assert execute.run(files, tmp_path / "src" / "deep" / "new", memory_bytes=MEMORY)


def test_a_destination_at_home_is_made_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_records(tmp_path / "src", [9])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert execute.run(plan_for(["src"], Options()), Path("~/new"), memory_bytes=MEMORY)
    assert packed_ids("records", tmp_path / "home" / "new") == list(range(9))
    assert not (tmp_path / "~").exists()


def test_columns_that_arrow_cannot_shuffle_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": pa.array(["a", "b"], pa.string_view())}), tmp_path / "v.parquet")
    with pytest.raises(errors.OtherTypeError, match=r"v\.parquet: column v is string_view, which .* cannot shuffle"):
        plan_for([str(tmp_path / "v.parquet")], Options(shuffle=True))
    assert plan_for([str(tmp_path / "v.parquet")], Options()).rows == 2


@pytest.mark.parametrize("kind", ["npy", "parquet", "jsonl", "tif"])
def test_a_link_to_a_source_that_was_not_fetched_is_named(tmp_path: Path, kind: str) -> None:
    make_records(tmp_path, [9])
    make_rows(tmp_path, [9])
    make_text(tmp_path, [9])
    write_tiff(tmp_path / "0.tif", np.ones((4, 4, 4), np.uint8), photometric="minisblack")
    (tmp_path / f"1.{kind}").symlink_to("/annex/objects/1")
    needed: dict[str, Any] = {"jsonl": {"tokenizer": str(tokenizer(tmp_path))}, "tif": {"patch": (2, 2, 2)}}
    with pytest.raises(errors.VanishedError, match=rf"1\.{kind}: is a link to /annex/objects/1, which is not there"):
        plan_for([str(tmp_path / f"*.{kind}")], Options(**needed.get(kind, {})))


def _growing(path: Path) -> None:
    """Rows of two numbers in the first row group, and of thousands in those behind it."""
    kind = pa.schema([("v", pa.list_(pa.float32()))])
    with pq.ParquetWriter(path, kind, compression="none", use_dictionary=False) as writer:
        for group in range(12):
            length = 2000 if group else 2
            offsets = np.arange(501, dtype=np.int32) * length
            values = np.arange(500 * length, dtype=np.float32)
            writer.write_table(pa.table([pa.ListArray.from_arrays(offsets, values)], schema=kind))


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_that_grow_behind_the_first_row_group_are_foreseen(tmp_path: Path, shuffle: bool) -> None:
    _growing(tmp_path / "a.parquet")
    size = (tmp_path / "a.parquet").stat().st_size
    made = plan_for([str(tmp_path / "a.parquet")], Options(shuffle=shuffle, shard_bytes=5_000_000))
    assert made.output_bytes == pytest.approx(size, rel=0.1)
    execute.run(made, tmp_path / "out", memory_bytes=MEMORY)
    sizes = [one.stat().st_size for one in (tmp_path / "out").glob("*.parquet")]
    assert max(sizes) < 9_000_000
    found = pa.concat_tables([pq.read_table(one) for one in sorted((tmp_path / "out").glob("*.parquet"))])
    expected = pq.read_table(tmp_path / "a.parquet")
    if shuffle:
        lengths = np.sort(pc.list_value_length(found.column("v")).to_numpy())
        np.testing.assert_array_equal(lengths, np.sort(pc.list_value_length(expected.column("v")).to_numpy()))
    else:
        assert found.equals(expected)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_row_group_that_is_larger_than_memory_is_packed_in_parts(tmp_path: Path, shuffle: bool) -> None:
    table = pa.table({"x": np.arange(4_000_000), "y": np.arange(4_000_000) / 2})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4_000_000, compression="none", use_dictionary=False)
    expected = table.nbytes
    del table
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        made = plan_for([str(tmp_path / "a.parquet")], Options(shuffle=shuffle, shard_bytes=4_000_000))
        for number in range(len(made.pieces)):
            layout(made.kind).spill(made, number, tmp_path)
        if not shuffle:
            layout(made.kind).write(made, 3, tmp_path / "b.parquet", [])
    finally:
        pa.set_memory_pool(before)
    assert len(made.outputs) >= 15
    assert pool.max_memory() < expected / 2


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".txt", ".parquet"])
def test_the_estimate_of_tokens_knows_the_tokenizer_and_the_compression(tmp_path: Path, suffix: str) -> None:
    documents = [" ".join(str(i % 7) for i in range(n % 50 + 1)) for n in range(20_000)]
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": documents}), path, compression="zstd")
    else:
        lines = documents if suffix == ".txt" else [json.dumps({"text": one}) for one in documents]
        raw = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(raw) if suffix.endswith(".gz") else raw)
    options = Options(tokenizer=str(tokenizer(tmp_path)), shuffle=True, shard_bytes=200_000)
    made = plan_for([str(path)], options)
    execute.run(made, tmp_path / "out", memory_bytes=MEMORY)
    sizes = [one.stat().st_size for one in (tmp_path / "out").glob("*.tokens")]
    assert sum(sizes) - 8 * len(documents) == pytest.approx(made.output_bytes, rel=0.35)
    assert made.dealt_bytes >= 4 * sum(len(one.split()) for one in documents) * 0.7
    assert max(sizes) < 400_000


def test_volumes_without_their_empty_chunks_are_packed_if_that_is_meant(tmp_path: Path) -> None:
    label = np.full((16, 16, 16), 7, np.uint8)
    label[:4, :4, :4] = 1
    made = zarr.create_array(str(tmp_path / "a.zarr"), shape=label.shape, chunks=(4, 4, 4), dtype="u1", fill_value=7)
    made[:] = label  # zarr writes one chunk of the sixty-four
    given = [str(tmp_path / "a.zarr")]
    with pytest.raises(errors.MissingChunkError, match=r"a\.zarr.*pack with --missing fill"):
        execute.run(plan_for(given, Options(patch=(4, 4, 4))), tmp_path / "dst", memory_bytes=MEMORY)
    shutil.rmtree(tmp_path / "dst.packing")
    through_json = plan.from_json(plan.to_json(plan_for(given, Options(patch=(4, 4, 4), missing="fill"))), "it")
    execute.run(through_json, tmp_path / "dst", memory_bytes=MEMORY)
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "dst" / "a.zarr"))[:], label)


@given(
    groups=st.lists(st.tuples(st.integers(1, 50), st.sampled_from([0, 1, 3, 400])), min_size=1, max_size=8),
    shard=st.integers(1, 3000),
)
@law
def test_rows_of_any_sizes_are_cut_into_shards_without_losing_one(groups: list[tuple[int, int]], shard: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        kind = pa.schema([("v", pa.list_(pa.int32())), ("n", pa.null())])
        with pq.ParquetWriter(place / "a.parquet", kind) as writer:
            for rows, length in groups:
                writer.write_table(pa.table({"v": [[rows] * length] * rows, "n": [None] * rows}, schema=kind))
        for columns in (["v", "n"], ["n"]):
            pq.write_table(pq.read_table(place / "a.parquet", columns=columns), place / "b.parquet", row_group_size=7)
            shutil.rmtree(place / "out", ignore_errors=True)
            made = plan_for([str(place / "b.parquet")], Options(shard_bytes=shard))
            assert all(output.stop > output.start for output in made.outputs)
            execute.run(made, place / "out", memory_bytes=MEMORY)
            found = [pq.read_table(one) for one in sorted((place / "out").glob("*.parquet"))]
            assert pa.concat_tables(found).equals(pq.read_table(place / "b.parquet"))


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["anna/ct.tif", "bob/ct.tif"], ["anna-ct.zarr", "bob-ct.zarr"]),
        (["scan.1.tif", "scan.2.tif"], ["scan.1.zarr", "scan.2.zarr"]),
        (["a.ome.tif", "b.ome.tif"], ["a.zarr", "b.zarr"]),
    ],
)
def test_volumes_of_one_name_are_told_apart_by_their_paths(tmp_path: Path, files: list[str], names: list[str]) -> None:
    for number, file in enumerate(files):
        write_tiff(tmp_path / "src" / file, np.full((4, 4, 4), number, np.uint8), photometric="minisblack")
    made = plan_for([str(tmp_path / "src" / file) for file in files], Options(patch=(4, 4, 4)))
    execute.run(made, tmp_path / "dst", memory_bytes=MEMORY)
    for number, name in enumerate(names):
        np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "dst" / name))[:], number)
