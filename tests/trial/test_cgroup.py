"""Where a trial's cgroup may stand: never where it would escape a limit that we are under."""

from pathlib import Path

import pytest

from stoker.trial import cgroup

MIB = 1 << 20


def fake(root: Path, kind: str, own: str, **files: str) -> cgroup.Place | None:
    """A hierarchy of plain files, and what /proc/self would say about it."""
    mount = root / "mnt"
    (mount / own).mkdir(parents=True)
    (mount / own / "cgroup.procs").write_text("")
    for name, text in files.items():
        (mount / own / name.replace("__", "/").replace("_", ".")).write_text(text)
    proc = root / "proc"
    proc.mkdir()
    controllers = "memory" if kind == "cgroup" else ""
    (proc / "cgroup").write_text(f"4:cpu:/elsewhere\n3:{controllers}:/{own}\n")
    (proc / "mountinfo").write_text(
        f"30 23 0:27 / {root} rw - tmpfs tmpfs rw\n31 23 0:28 / {mount} rw,relatime - {kind} {kind} rw,{controllers}\n"
    )
    return cgroup.place(proc)


def test_v1_stands_below_our_own(tmp_path: Path) -> None:
    place = fake(tmp_path, "cgroup", "a/b")
    assert place is not None
    assert place.files is cgroup.V1
    assert place.parent_for_trials() == tmp_path / "mnt/a/b"
    assert list(place.chain()) == [tmp_path / "mnt/a/b", tmp_path / "mnt/a", tmp_path / "mnt"]


def v2(root: Path, limit: str) -> cgroup.Place:
    place = fake(root, "cgroup2", "a/b", cgroup_controllers="cpu memory\n", memory_max=limit)
    assert place is not None
    assert place.files is cgroup.V2
    return place


def test_v2_stands_beside_our_own_where_memory_is_shared_out(tmp_path: Path) -> None:
    place = v2(tmp_path, "max\n")
    assert place.parent_for_trials() is None
    (tmp_path / "mnt/a/cgroup.subtree_control").write_text("cpu memory\n")
    assert place.parent_for_trials() == tmp_path / "mnt/a"


def test_v2_does_not_step_out_of_a_group_that_has_a_limit(tmp_path: Path) -> None:
    place = v2(tmp_path, "1000000\n")
    (tmp_path / "mnt/a/cgroup.subtree_control").write_text("cpu memory\n")
    assert place.parent_for_trials() is None


def test_v2_without_the_memory_controller_is_no_place(tmp_path: Path) -> None:
    assert fake(tmp_path, "cgroup2", "a/b", cgroup_controllers="hugetlb\n") is None


def test_a_machine_without_cgroups_has_no_place(tmp_path: Path) -> None:
    assert cgroup.place(tmp_path) is None


@pytest.mark.parametrize("files", [cgroup.V1, cgroup.V2], ids=["v1", "v2"])
def test_room_is_the_limit_less_what_cannot_be_given_back(tmp_path: Path, files: cgroup.Files) -> None:
    (tmp_path / files.limit).write_text("1000\n")
    (tmp_path / files.usage).write_text("700\n")
    (tmp_path / "memory.stat").write_text(f"{files.file[0]} 100\n{files.file[1]} 200\nother 5\n")
    assert cgroup._room_bytes(tmp_path, files) == 600


@pytest.mark.parametrize("text", ["max\n", "9223372036854771712\n"])
def test_no_limit_is_no_limit(tmp_path: Path, text: str) -> None:
    (tmp_path / "memory.max").write_text(text)
    assert cgroup.limit_bytes(tmp_path, cgroup.V2) is None


def test_v2_is_limited_killed_and_read_by_its_own_files(tmp_path: Path) -> None:
    group = cgroup.Group(tmp_path, cgroup.V2)
    group.limit(100 * MIB)
    group.kill()
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {
        "memory.max": str(100 * MIB),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "cgroup.kill": "1",
    }
    (tmp_path / "memory.stat").write_text("anon 70\nfile 900\nshmem 30\n")
    (tmp_path / "memory.events").write_text("oom 2\noom_kill 1\n")
    (tmp_path / "cgroup.procs").write_text("12\n13\n")
    assert group.memory() == (100, 30)
    assert group.oom_kills() == 1
    assert group.pids() == {12, 13}


def test_a_group_that_cannot_be_written_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = cgroup.Place(cgroup.V1, tmp_path, tmp_path / "missing")
    monkeypatch.setattr(cgroup, "place", lambda: place)
    assert cgroup.create("x", MIB) is None
    assert cgroup.find("x") is None
    assert cgroup.names() == []
