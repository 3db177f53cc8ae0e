"""One image from bytes into its place in a batch. Releases the GIL where time goes: in the decoders and the resize."""

import io
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import simplejpeg
import torch
from torch.nn.functional import interpolate

from stoker.errors import CorruptError, MissingExtraError, StokerError
from stoker.loader.scratch import of_thread
from stoker.loader.source.augment import Crop, box, is_mirrored, least, scaled

PIXELS_MOST = 1 << 28
"""An image that claims more than 268 million pixels is refused before memory is taken for it."""
SCALES_FROM = 2
"""libjpeg decodes at 1/2, 1/4 and 1/8 faster than whole; at 5/8 it is slower than decoding whole and resizing."""

_JPEG = b"\xff\xd8"


class Decoder:
    """How images become samples: size, crop, mirror."""

    def __init__(self, size: tuple[int, int], crop: Crop | None, flip: bool) -> None:
        self.size = size
        self.crop = crop
        self.flip = flip

    def into(self, out: torch.Tensor, data: Any, numbers: Any, name: Callable[[], str]) -> None:
        """Decode, cut, resize and mirror one image into `out` (uint8: 3, height, width). `name` is for an error."""
        try:
            image, (top, left, height, width) = self._decode(data, numbers)
        except StokerError:
            raise
        except Exception as error:  # decoders of untrusted bytes raise whatever they like
            raise CorruptError(name(), f"cannot be decoded as an image ({error})") from error
        part = torch.from_numpy(image)[top : top + height, left : left + width].permute(2, 0, 1)
        if (height, width) != self.size:
            part = interpolate(part[None], size=self.size, mode="bilinear", antialias=True)[0]
        out.copy_(part.flip(-1) if self.flip and is_mirrored(numbers) else part)

    def _decode(self, data: Any, numbers: Any) -> tuple[np.ndarray[Any, Any], tuple[int, int, int, int]]:
        if bytes(data[:2]) == _JPEG:
            try:
                return self._jpeg(data, numbers)
            except ValueError:  # CMYK, or harmless garbage that libjpeg warns of: Pillow knows more kinds
                pass
        image = _pillow(data)
        return image, box(image.shape[0], image.shape[1], self.size, self.crop, numbers)

    def _jpeg(self, data: Any, numbers: Any) -> tuple[np.ndarray[Any, Any], tuple[int, int, int, int]]:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        _check(height, width)
        top, left, h, w = box(height, width, self.size, self.crop, numbers)
        image = simplejpeg.decode_jpeg(
            data,
            "RGB",
            min_height=least(height, h, self.size[0]),
            min_width=least(width, w, self.size[1]),
            min_factor=SCALES_FROM,
            buffer=of_thread("decode").room(height * width * 3),
        )
        y, y_stop = scaled(top, h, height, image.shape[0])
        x, x_stop = scaled(left, w, width, image.shape[1])
        return image, (y, x, y_stop - y, x_stop - x)


def _pillow(data: Any) -> np.ndarray[Any, Any]:
    if find_spec("PIL") is None:
        raise MissingExtraError("pillow", "images")
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        _check(image.height, image.width)
        return np.array(image.convert("RGB"))


def _check(height: int, width: int) -> None:
    if height * width > PIXELS_MOST:
        raise ValueError(f"it claims {height} by {width} pixels; expected at most {PIXELS_MOST} in all")
