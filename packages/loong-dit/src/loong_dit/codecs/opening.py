"""Codecs by what a user calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from loong_core.errors import UserError
from loong_dit.codecs.codec import CaptionEncoder, LatentCodec, Pixels, Words
from loong_dit.codecs.facts import PIXELS, text_folders, vae_folder, words_width
from loong_dit.families.family import CaptionFrame


def open_vae(source: str | Path | None, device: torch.device, dtype: torch.dtype = torch.float32) -> LatentCodec:
    """`pixels`, `pixels-grey`, or the folder of a VAE or of a pipeline that has one.

    Raises:
        UserError: there is none.
    """
    if isinstance(source, str) and source in PIXELS:
        return Pixels(PIXELS[source])
    folder = vae_folder(source)
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
    if width := words_width(source):
        return Words(width)
    encoder, tokenizer = text_folders(source)
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
