"""Make photo-like JPEGs of about 131 kB, one object for each image, in a hundred classes."""

import io
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import folder

# The note has 100 classes of 500 training and 10 validation images: scale 83.
CLASSES = 100
TRAIN_IMAGES = 6
IMAGE_BYTES = 131_000
WIDTH, HEIGHT = 500, 375
QUALITY = 93


def plan(scale: float) -> folder.Sizes:
    train = max(1, round(TRAIN_IMAGES * scale))
    val = max(1, round(train / 50))
    images = CLASSES * (train + val)
    return {
        "files": images,
        "classes": CLASSES,
        "train_images": train,
        "val_images": val,
        "bytes": images * IMAGE_BYTES,
    }


def write(out: Path, sizes: folder.Sizes, seed: int, tick: folder.Tick) -> None:
    try:
        from PIL import Image
    except ImportError:
        sys.exit("make_data: pillow is not installed; run: pip install 'stoker[images]'")
    for split, count in (("train", sizes["train_images"]), ("val", sizes["val_images"])):
        for label in range(sizes["classes"]):
            home = out / split / f"class_{label:03d}"
            home.mkdir(parents=True)
            for number in range(count):
                random = np.random.default_rng([seed, label, number, split == "val"])
                jpeg = io.BytesIO()
                Image.fromarray(_photo(random, label)).save(jpeg, "JPEG", quality=QUALITY)
                (home / f"{number:04d}.jpg").write_bytes(jpeg.getvalue())
                tick()


def _photo(random: np.random.Generator, label: int) -> np.ndarray:
    """Smooth colours with a tint that tells the class, and grain that gives the file a photo's size."""
    coarse = random.integers(40, 215, (HEIGHT // 25 + 1, WIDTH // 25 + 1, 3)).astype(np.int16)
    smooth = coarse.repeat(25, axis=0).repeat(25, axis=1)[:HEIGHT, :WIDTH]
    tint = np.array([label % 5, label // 5 % 5, label // 25], np.int16) * 8 - 16
    grain = random.integers(-24, 25, (HEIGHT, WIDTH, 1), dtype=np.int16)
    return np.clip(smooth + tint + grain, 0, 255).astype(np.uint8)


if __name__ == "__main__":
    folder.make("images", __doc__, plan, write)
