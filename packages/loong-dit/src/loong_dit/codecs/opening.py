"""Codecs by what a user calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from loong_core.errors import UserError
from loong_dit.codecs.codec import CaptionEncoder, LatentCodec, Pixels, Words
from loong_dit.families.family import CaptionFrame

PIXELS = {"pixels": 3, "pixels-grey": 1}
"""Names of the codecs that need no weights, and their channels."""


def open_vae(source: str | Path | None, device: torch.device, dtype: torch.dtype = torch.float32) -> LatentCodec:
    """`pixels`, `pixels-grey`, or the folder of a VAE or of a pipeline that has one.

    Raises:
        UserError: there is none.
    """
    if source is None:
        raise UserError("there is no VAE to decode latents with: name a pipeline's folder, which has vae/")
    if isinstance(source, str) and source in PIXELS:
        return Pixels(PIXELS[source])
    folder = Path(source).expanduser()
    folder = folder / "vae" if (folder / "vae" / "config.json").is_file() else folder
    if not (folder / "config.json").is_file():
        raise UserError(f"{source} has no VAE; name one's folder, a pipeline's, pixels or pixels-grey")
    from loong_dit.codecs.diffusers_codecs import DiffusersVae

    return DiffusersVae(folder, device, dtype)


def open_text_encoder(
    source: str | Path,
    longest: int,
    device: torch.device,
    frame: CaptionFrame | None = None,
    dtype: torch.dtype = torch.float32,
) -> CaptionEncoder:
    """`words-N` (vectors of N numbers), or the folder of a pipeline with `text_encoder/` and `tokenizer/`.

    Raises:
        UserError: there is none.
    """
    if isinstance(source, str) and source.startswith("words-") and source[6:].isdecimal() and int(source[6:]):
        return Words(int(source[6:]))
    folder = Path(source).expanduser()
    encoder, tokenizer = folder / "text_encoder", folder / "tokenizer"
    if not (encoder / "config.json").is_file() or not tokenizer.is_dir():
        raise UserError(
            f"{source} is no pipeline's folder with text_encoder/ and tokenizer/; name one, or words-N for vectors of "
            "N numbers a word"
        )
    from loong_dit.codecs.diffusers_codecs import TransformersText

    return TransformersText(encoder, tokenizer, longest, device, frame or CaptionFrame(), dtype)


def open_image_encoder(pipeline: Path | None, device: torch.device) -> Callable[[Tensor], Tensor]:
    """What a pipeline sees condition images through.

    Raises:
        UserError: there is none.
    """
    if pipeline is None or not (pipeline / "image_encoder" / "config.json").is_file():
        raise UserError("the model sees condition images through an encoder: name a pipeline with image_encoder/")
    from loong_dit.codecs.diffusers_codecs import ClipImages

    return ClipImages(pipeline / "image_encoder", device)
