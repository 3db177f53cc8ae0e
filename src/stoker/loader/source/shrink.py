"""An image made smaller once, so that it need not be decoded whole every time: a JPEG with a shorter side."""

from typing import Any

import numpy as np
import simplejpeg
import torch

from stoker.loader.source.decode import Decoder, is_jpeg, shape
from stoker.loader.source.exif import oriented

QUALITY = 90


def smaller(height: int, width: int, side: int) -> tuple[int, int]:
    """The size at which the shorter side is `side`; never larger than it was."""
    scale = min(1.0, side / min(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def shrunk(data: Any, side: int, name: str, quality: int = QUALITY) -> Any:
    """An image as a JPEG whose shorter side is `side`; a JPEG that is no larger stays as it is, byte for byte.

    What cannot be decoded is an error, also where it would stay. `name` is for that.
    """
    before = shape(data, name)
    size = smaller(*before, side)
    decoder = Decoder(size, None, flip=False)
    part = decoder.part(data, None, lambda: name)
    if size == before and is_jpeg(data):
        return data
    out = torch.empty((1, 3, *size), dtype=torch.uint8)
    decoder.place(out, part[None], (None,))
    pixels = np.ascontiguousarray(out[0].permute(1, 2, 0).numpy())
    return oriented(simplejpeg.encode_jpeg(pixels, quality=quality, colorspace="RGB", colorsubsampling="420"), data)
