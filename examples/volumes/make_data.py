"""Make scanned-scroll-like volumes: uint8 TIFF stacks with a label each, read whole to train on one small patch."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import folder

# The note has 757 volumes of 320³, 48 of 256³ and one of 384³. Scale grows edges up to four times, then the count.
VOLUMES, VOLUMES_MOST = 48, 806
FULL_EDGE, EDGE = 320, 80
FULL_PATCH = (72, 136, 136)


def plan(scale: float) -> folder.Sizes:
    edge = min(FULL_EDGE, max(40, 8 * round(EDGE * scale ** (1 / 3) / 8)))
    count = min(VOLUMES_MOST, max(VOLUMES, round(VOLUMES * scale * (EDGE / edge) ** 3)))
    edges = [edge] * count
    edges[:: max(1, count // 3)] = [edge * 4 // 5] * len(edges[:: max(1, count // 3)])
    edges[-1] = edge * 6 // 5
    return {
        "files": count,
        "edges": edges,
        "patch": [max(8, side * edge // FULL_EDGE) for side in FULL_PATCH],
        "bytes": 2 * sum(side**3 for side in edges),
    }


def write(out: Path, sizes: folder.Sizes, seed: int, tick: folder.Tick) -> None:
    try:
        import tifffile
    except ImportError:
        sys.exit("make_data: tifffile is not installed; run: pip install 'stoker[volumes]'")
    (out / "images").mkdir()
    (out / "labels").mkdir()
    for number, edge in enumerate(sizes["edges"]):
        image, label = _scroll(np.random.default_rng([seed, number]), edge)
        tifffile.imwrite(out / "images" / f"{number:04d}.tif", image)
        tifffile.imwrite(out / "labels" / f"{number:04d}.tif", label)
        tick()


def _scroll(random: np.random.Generator, edge: int) -> tuple[np.ndarray, np.ndarray]:
    """Wavy bright sheets in noise, and where they are."""
    z, y, x = np.ogrid[:edge, :edge, :edge]
    phase = x * 0.35 + 2 * np.sin(y * random.uniform(0.03, 0.08)) + 2 * np.sin(z * random.uniform(0.03, 0.08))
    sheet = np.sin(phase + random.uniform(0, 6)) > 0.7
    noise = random.integers(0, 90, (edge, edge, edge), dtype=np.uint8)
    return noise + np.where(sheet, np.uint8(120), np.uint8(30)), sheet.astype(np.uint8)


if __name__ == "__main__":
    folder.make("volumes", __doc__, plan, write)
