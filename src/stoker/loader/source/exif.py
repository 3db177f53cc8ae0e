"""Which way up an image is: Exif's number for it, found in one file and put into another."""

from typing import Any

from stoker.loader.source.decode import is_jpeg, opened, pillow

_TAG = 0x0112
_ORIENTATIONS = range(2, 9)
"""1 is upright, and so is an image of which nothing is said."""
_START, _SCAN, _APP1 = 2, 0xDA, 0xE1
_EXIF = b"Exif\0\0"


def oriented(jpeg: bytes, like: Any) -> bytes:
    """A JPEG that is shown the same way up as another image. The rest of its Exif, thumbnail and all, stays behind."""
    said = _segment(like) if is_jpeg(like) else opened(like).info.get("exif")
    if not said:
        return jpeg
    exif = pillow().Exif()
    try:
        exif.load(bytes(said))
        number = exif.get(_TAG)
    except Exception:  # noqa: BLE001  as decoders of untrusted bytes, it raises whatever it likes
        return jpeg
    if number not in _ORIENTATIONS:
        return jpeg
    written = pillow().Exif()
    written[_TAG] = number
    body: bytes = written.tobytes()
    return jpeg[:_START] + bytes([0xFF, _APP1]) + (len(body) + 2).to_bytes(2, "big") + body + jpeg[_START:]


def _segment(data: Any) -> bytes | None:
    """The Exif of a JPEG, which comes before its pixels."""
    at, view = _START, memoryview(data)
    while at + 4 <= len(view) and view[at] == 0xFF and view[at + 1] != _SCAN:  # noqa: PLR2004  how each segment begins
        end = at + 2 + int.from_bytes(view[at + 2 : at + 4], "big")
        if view[at + 1] == _APP1 and view[at + 4 : at + 10] == _EXIF:
            return bytes(view[at + 4 : end])
        at = end
    return None
