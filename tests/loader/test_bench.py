"""`stoker bench` through the real program."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from PIL import Image

from loader import texts
from loader.sources import npy, parquet
from loader.texts import tokenizer
from stoker.commands import main
from stoker.loader.source import pagecache
from stoker.sim.store import Store


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stoker", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("kind", ["npy", "text"])
def test_data_in_a_store_is_measured_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    bucket = tmp_path / "bucket"
    npy(bucket / "npy", [40, 40]).close()
    texts.write(bucket / "text" / "a.jsonl", [texts.words(i) for i in range(80)])
    monkeypatch.chdir(tmp_path)
    how = [] if kind == "npy" else ["--tokenizer", tokenizer(tmp_path), "--length", 8]
    with Store(bucket) as store:
        for name, value in {"ENDPOINT_URL": store.endpoint, "REGION": "x", "ACCESS_KEY_ID": "a"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        done = bench(f"s3://{store.bucket}/{kind}/", "--batch-size", 8, "--seconds", 0.2, "--json", "out.json", *how)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert {run["cache"] for run in found["runs"]} == {"store"}
    assert all(run["rows_per_s"] > 0 for run in found["runs"])


def test_it_measures_every_order_and_writes_json(tmp_path: Path) -> None:
    rows = np.zeros(40_000, [("x", "f4", (8,)), ("label", "i2")])
    rows["label"] = np.arange(len(rows)) // 4000  # sorted by class: in order, a batch has one label
    np.save(tmp_path / "a.npy", rows)
    done = bench(tmp_path, "--batch-size", 50, "--seconds", 0.3, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert "40,000 rows of 34 bytes in 1 npy file" in done.stdout
    assert "measuring: in order, warm" in done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    runs = {(run["order"], run["cache"]): run for run in found["runs"]}
    assert {order for order, _ in runs} == {"in order", "shuffled", "full random"}
    warm = [run for (_, cache), run in runs.items() if cache == "warm"]
    assert all(run["rows_per_s"] > 0 and run["share_of_copy"] > 0 for run in warm)
    assert runs["in order", "warm"]["label_entropy_bits"] < 0.2
    assert runs["shuffled", "warm"]["label_entropy_bits"] > 2.5
    assert 2.5 < found["label_entropy_uniform_bits"] < np.log2(10)
    assert 0.5 < runs["full random", "warm"]["pair_ratio"] < 1.5


def test_parquet_has_no_full_random(tmp_path: Path) -> None:
    parquet(tmp_path / "p", [40, 40])
    done = bench(tmp_path / "p" / "*.parquet", "--seconds", 0.2, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert {run["order"] for run in found["runs"]} == {"in order", "shuffled"}
    assert found["label"] is None


def test_wrong_input_is_one_line_and_exit_code_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    npy(tmp_path / "n", [8])
    for arguments, says in (
        ([tmp_path / "nothing*.npy"], "no file matches"),
        ([tmp_path / "n", "--label", "half"], "--label is half; expected a whole-number field: id, big"),
        ([tmp_path / "n", "--batch-size", "0"], "batch_size is 0"),
        ([tmp_path / "n", "--columns", "z"], "no field is called z"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["bench", *map(str, arguments), "--seconds", "0.1"])
        assert ended.value.code == 2
        assert says in capsys.readouterr().err.splitlines()[-1]


def test_a_file_can_be_seen_in_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(1 << 16))
    assert pagecache.cached_share(str(path)) in (None, 1.0)
    pagecache.evict(str(path))
    share = pagecache.cached_share(str(path))
    assert share is None or 0 <= share <= 1


def test_images_volumes_and_text_are_measured_once_it_is_said_what_a_row_is(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for i in range(12):
        (tmp_path / "photos" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 255, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / "ab"[i % 2] / f"{i}.jpg")
    volume = zarr.create_array(store=str(tmp_path / "v.zarr"), shape=(32, 32, 32), chunks=(16, 16, 16), dtype="uint8")
    volume[:] = random.integers(0, 255, (32, 32, 32), dtype=np.uint8)
    (tmp_path / "t.jsonl").write_text('{"body": "1 2 3 4 5"}\n' * 40)
    for arguments, kind, fields in (
        ([tmp_path / "photos", "--size", "32"], "images", ["image", "label", "key"]),
        ([tmp_path / "v.zarr", "--patch", "8,8,8"], "volumes", ["patch", "volume", "corner"]),
        (
            [tmp_path / "t.jsonl", "--tokenizer", tokenizer(tmp_path), "--column", "body", "--length", 8],
            "text",
            ["tokens", "lengths"],
        ),
    ):
        done = bench(*arguments, "--batch-size", 4, "--seconds", 0.2, "--json", tmp_path / "out.json")
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "out.json").read_text())
        assert found["kind"] == kind
        assert found["fields"] == fields
        assert all(run["rows_per_s"] > 0 for run in found["runs"] if run["cache"] == "warm")
