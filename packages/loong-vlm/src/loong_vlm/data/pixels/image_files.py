"""Image files: their size from the header, and their pixels, as transformers' `load_image` gives them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from loong_core.errors import UserError
from loong_vlm.data.pixels.geometry import Size

_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)
"""Values of EXIF's orientation that turn an image on its side."""


def image_size(data: bytes) -> Size:
    """Height and width of an image after EXIF's rotation; only the header is looked at.

    Raises:
        UserError: it is empty or no image.
    """
    with _opened(data) as image:
        # Asked for EXIF that its header lacks, a PNG is decoded whole in search of it.
        has_exif = image.format != "PNG" or "exif" in image.info
        sideways = has_exif and image.getexif().get(_ORIENTATION) in _SIDEWAYS
        return (image.width, image.height) if sideways else (image.height, image.width)


def decode_image(data: bytes) -> Tensor:
    """`[height, width, 3]` uint8, rotated as EXIF says, without transparency.

    Raises:
        UserError: it is empty, no image, cut short, or has pixels that are no numbers.
    """
    with _opened(data) as image:
        if image.mode == "F" and np.isnan(np.asarray(image)).any():
            raise UserError("it has pixels that are NaN; write it again, or leave it out")
        upright = ImageOps.exif_transpose(image)
        return torch.from_numpy(np.array(upright if upright.mode == "RGB" else upright.convert("RGB")))


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    if not data:
        raise UserError("the file is empty (0 bytes); copy it again, or leave it out")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd EXIF blocks and large images, which decode all the same
            with Image.open(io.BytesIO(data)) as image:
                yield image
    except UnidentifiedImageError as error:
        shown = data[:8].hex(" ")
        raise UserError(f"it is no image that Pillow knows (its first bytes are {shown}); leave it out") from error
    except Image.DecompressionBombError as error:
        raise UserError(f"it is too large to decode ({error}); make it smaller first") from error
    except (OSError, SyntaxError, ValueError, IndexError) as error:
        raise UserError(f"it cannot be decoded ({error}); copy it again, or leave it out") from error
