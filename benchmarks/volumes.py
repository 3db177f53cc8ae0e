"""Patches a second: the case's slow script against stoker, amplification, and the fixed script against its ceiling.

python benchmarks/volumes.py [--rounds 3] [--json volumes.json]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader

import stoker
from stoker.loader.source import zarrs
from stoker.loader.source.open_volumes import open_volumes
from stoker.loader.source.volumes import VolumeSource

CASE = Path(__file__).resolve().parents[1] / "examples" / "volumes"
sys.path.insert(0, str(CASE))
PATCH = (72, 136, 136)


def script(name: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, str(CASE / name), *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)


def slow_rate(data: Path, patch: list[int], steps: int) -> float:
    """The case's own data set and loader settings, on local files: the remote latency is left out."""
    from train import PatchDataset  # type: ignore[import-not-found]

    names = sorted(path.name for path in (data / "images").iterdir())
    dataset = PatchDataset(str(data), names, patch, steps + 1, 3, 0)
    batches = iter(DataLoader(dataset, 1, num_workers=1, prefetch_factor=1))
    next(batches)  # the worker's start is not its rate
    began = time.perf_counter()
    for _ in batches:
        pass
    return steps / (time.perf_counter() - began)


def prepared(data: Path, patch: list[int], cache: Path) -> VolumeSource:
    from train_fixed import prepare  # type: ignore[import-not-found]

    source = open_volumes(data / "images", labels=data / "labels", patch=patch, patches=5, cache=cache)
    return source.cached(prepare, key="as the case does")


def fast_rate(loader: stoker.Loader, seconds: float) -> float:
    from train_fixed import augment

    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for batch in loader:
            augment(batch, 0)
            count += 1
    return count / (time.perf_counter() - began)


def amplification(folder: Path, patches: int) -> dict[str, float]:
    """Voxels read for each voxel used: 320³ volumes with the note's patch, in one chunk and in packed ones."""
    array = np.random.default_rng(0).integers(0, 255, (320, 320, 320), np.uint8)
    found = {}
    for name, chunk in (("128³ chunks", (128, 128, 128)), ("packed chunks", zarrs.chunks_for(PATCH, array.shape))):
        for number in range(2):
            store = zarrs.create(folder / name / f"{number}.zarr", array.shape, array.dtype, chunk, compress=False)
            store[...].write(array).result()
        source = stoker.open(folder / name, patch=PATCH, patches=patches, cache=folder / "cache")
        with stoker.Loader(source, 1, shuffle=True) as loader:
            for _ in range(8):
                list(loader)
            found[name] = loader.stats().amplification or 0.0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        script("make_data.py", "--out", str(folder / "data"))
        patch = json.loads((folder / "data" / "dataset.json").read_text())["patch"]
        ratios = []
        with stoker.Loader(prepared(folder / "data", patch, folder / "cache"), 1, shuffle=True) as loader:
            for _ in range(options.rounds):
                slow = slow_rate(folder / "data", patch, 6)
                ratios.append(fast_rate(loader, 3.0) / slow)
        read = amplification(folder, 5)
        ceilings = []
        for _ in range(options.rounds):
            arguments = ["--data", str(folder / "data"), "--out", str(folder / "run"), "--val-steps", "0"]
            script("train_fixed.py", *arguments, "--steps", "120")
            metrics = json.loads((folder / "run" / "metrics.json").read_text())
            ceilings.append(metrics["device_step_s"] / metrics["step_s"])
    print("| volumes | ratio |\n|---|---|")
    print(f"| patches a second, stoker ÷ the slow script (local files) | {statistics.median(ratios):.1f} |")
    for kind, value in read.items():
        print(f"| voxels read ÷ used, {kind}, 5 patches a volume | {value:.2f} |")
    print(f"| train_fixed.py ÷ its compute ceiling | {statistics.median(ceilings):.2f} |")
    if options.json:
        options.json.write_text(json.dumps({"ratios": ratios, "amplification": read, "ceilings": ceilings}, indent=2))


if __name__ == "__main__":
    main()
