"""One image from bytes into its place in a batch. Releases the GIL where time goes: in the decoders and the resize."""

import io
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from stoker.errors import CorruptError, DataError, EmptyFileError, MissingExtraError, StokerError
from stoker.loader.scratch import of_thread
from stoker.loader.source.augment import Box, Crop, box, is_mirrored, least, scaled

PIXELS_MOST = 1 << 28
"""An image that claims more than 268 million pixels is refused before memory is taken for it."""
SCALES_FROM = 2
"""libjpeg decodes at 1/2, 1/4 and 1/8 faster than whole; at 5/8 it is slower than decoding whole and resizing."""

Pixels = NDArray[np.uint8]

_STRIP_BYTES = 1 << 18
"""Of small images that are resized together: what stays in the nearest caches of one core."""
_JPEG = b"\xff\xd8"


class Decoder:
    """How images become samples: size, crop, mirror."""

    def __init__(self, size: tuple[int, int], crop: Crop | None, flip: bool) -> None:
        self.size = size
        self.crop = crop
        self.flip = flip

    def part(self, data: Any, numbers: Any, name: Callable[[], str]) -> Pixels:
        """Decode and cut one image (height, width, 3); the next one overwrites it. `name` is for an error."""
        try:
            image, (top, left, height, width) = self._decode(data, numbers)
        except StokerError:
            raise
        except Exception as error:  # decoders of untrusted bytes raise whatever they like
            raise _bad(data, name(), error) from error
        return image[top : top + height, left : left + width]

    def place(self, out: torch.Tensor, parts: Pixels, numbers: Sequence[Any]) -> None:
        """Resize and mirror parts of one shape (n, height, width, 3) into `out` (uint8: n, 3, height, width)."""
        images = torch.from_numpy(parts).permute(0, 3, 1, 2)
        if parts.shape[1:3] != self.size:
            images = interpolate(images, size=self.size, mode="bilinear", antialias=True)
        out.copy_(images)
        if self.flip:
            for at in [at for at, one in enumerate(numbers) if is_mirrored(one)]:
                out[at].copy_(images[at].flip(-1))

    def _decode(self, data: Any, numbers: Any) -> tuple[Pixels, Box]:
        if is_jpeg(data):
            try:
                return self._jpeg(data, numbers)
            except ValueError:  # CMYK, or harmless garbage that libjpeg warns of: Pillow knows more kinds
                pass
        image = _pillow(data)
        return image, box(image.shape[0], image.shape[1], self.size, self.crop, numbers)

    def _jpeg(self, data: Any, numbers: Any) -> tuple[Pixels, Box]:
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


def is_jpeg(data: Any) -> bool:
    """True if it begins like one."""
    return bytes(data[:2]) == _JPEG


def shape(data: Any, name: str) -> tuple[int, int]:
    """Height and width of an image, from its header. `name` is for an error."""
    try:
        if is_jpeg(data):
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        else:
            width, height = opened(data).size
        _check(height, width)
    except StokerError:
        raise
    except Exception as error:  # decoders of untrusted bytes raise whatever they like
        raise _bad(data, name, error) from error
    return height, width


def _bad(data: Any, name: str, error: Exception) -> DataError:
    if not len(data):
        return EmptyFileError(name, "the file is empty; expected an image")
    return CorruptError(name, f"cannot be decoded as an image ({error})")


class Strip:
    """Small images that follow each other and have one shape by now: resized by one call, for the price of a few.

    Images are added in their order in the batch; `flush` puts into it what is held.
    """

    def __init__(self, decoder: Decoder, out: torch.Tensor) -> None:
        self._decoder, self._out = decoder, out
        self._parts: Pixels | None = None
        self._start = 0
        self._numbers: list[Any] = []

    def add(self, at: int, part: Pixels, numbers: Any) -> None:
        """The batch's image `at`."""
        if part.nbytes > _STRIP_BYTES // 2:  # a copy of a large one would cost more than it saves
            self.flush()
            self._decoder.place(self._out[at : at + 1], part[None], (numbers,))
            return
        parts, held = self._parts, len(self._numbers)
        if parts is None or parts.shape[1:] != part.shape or held == len(parts) or at != self._start + held:
            self.flush()
            count, held = _STRIP_BYTES // part.nbytes, 0
            room = of_thread("strip").room(_STRIP_BYTES)[: count * part.nbytes]
            self._parts = parts = np.frombuffer(room, np.uint8).reshape(count, *part.shape)
            self._start = at
        parts[held] = part
        self._numbers.append(numbers)

    def flush(self) -> None:
        """Put what is held into the batch."""
        held, self._parts = self._parts, None
        if held is not None:
            numbers, self._numbers = self._numbers, []
            self._decoder.place(self._out[self._start : self._start + len(numbers)], held[: len(numbers)], numbers)


def _pillow(data: Any) -> Pixels:
    with opened(data) as image:
        _check(image.height, image.width)
        if image.mode.startswith("I") or image.mode == "F":
            return np.repeat(_high_byte(image)[..., None], 3, axis=2)
        return np.array(image.convert("RGB"))


def _high_byte(image: Any) -> Pixels:
    """Of 16 bits of grey the upper eight, which is what Pillow takes of 16 bits of colour."""
    if not (image.mode.startswith("I;16") or image.format == "PNG"):
        raise ValueError(f"its pixels are of Pillow's mode {image.mode}, in which no number is known to be white")
    return (np.asarray(image) >> 8).astype(np.uint8)


def opened(data: Any) -> Any:
    """An image as Pillow sees it, not decoded yet."""
    return pillow().open(io.BytesIO(data))


def pillow() -> Any:
    """Pillow's `Image`, if it is there."""
    if find_spec("PIL") is None:
        raise MissingExtraError("pillow", "images")
    from PIL import Image

    return Image


def _check(height: int, width: int) -> None:
    if height * width > PIXELS_MOST:
        raise ValueError(f"it claims {height} by {width} pixels; expected at most {PIXELS_MOST} in all")
