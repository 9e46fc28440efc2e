"""What the configs of a VAE and of a text encoder say of them, without their weights; imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loong_core.errors import UserError

PIXELS = {"pixels": 3, "pixels-grey": 1}
"""Names of the codecs that need no weights, and their channels."""


@dataclass(frozen=True)
class VaeFacts:
    """A VAE's name, the channels of its latents, and `steps` as `LatentCodec` has them."""

    name: str
    channels: int
    steps: tuple[int, int, int]

    @staticmethod
    def of(name: str, config: Mapping[str, Any]) -> VaeFacts:
        """From diffusers' config of a VAE, a video's (with `z_dim`) or a picture's.

        Raises:
            KeyError: it does not say.
        """
        if "z_dim" not in config:
            side = 2 ** (len(config["block_out_channels"]) - 1)
            return VaeFacts(name, int(config["latent_channels"]), (1, side, side))
        frames = 2 ** sum(bool(each) for each in config["temperal_downsample"])
        side = 2 ** (len(config["dim_mult"]) - 1) * int(config.get("patch_size") or 1)
        side = int(config.get("scale_factor_spatial") or side)
        return VaeFacts(name, int(config["z_dim"]), (int(config.get("scale_factor_temporal") or frames), side, side))


@dataclass(frozen=True)
class TextFacts:
    """A text encoder's name, and the width of its embeddings."""

    name: str
    width: int


def vae_folder(source: str | Path | None) -> Path:
    """The folder of a VAE, from its own or a pipeline's.

    Raises:
        UserError: there is none.
    """
    if source is None:
        raise UserError("there is no VAE: name a pipeline's folder, which has vae/")
    folder = Path(source).expanduser()
    folder = folder / "vae" if (folder / "vae" / "config.json").is_file() else folder
    if not (folder / "config.json").is_file():
        raise UserError(f"{source} has no VAE; name one's folder, a pipeline's, pixels or pixels-grey")
    return folder


def words_width(source: str | Path) -> int | None:
    """N of `words-N`, None for anything else."""
    if not isinstance(source, str) or not source.startswith("words-") or not source[6:].isdecimal():
        return None
    return int(source[6:]) or None


def text_folders(source: str | Path) -> tuple[Path, Path]:
    """The folders of a text encoder and of its tokenizer, in a pipeline's.

    Raises:
        UserError: one of them is not there.
    """
    folder = Path(source).expanduser()
    encoder, tokenizer = folder / "text_encoder", folder / "tokenizer"
    if not (encoder / "config.json").is_file() or not tokenizer.is_dir():
        raise UserError(
            f"{source} is no pipeline's folder with text_encoder/ and tokenizer/; name one, or words-N for vectors of "
            "N numbers a word"
        )
    return encoder, tokenizer


def vae_facts(source: str | Path | None) -> VaeFacts:
    """Of what `open_vae` opens, from its config.

    Raises:
        UserError: there is none, or its config does not say.
    """
    if isinstance(source, str) and source in PIXELS:
        return VaeFacts("pixels", PIXELS[source], (1, 1, 1))
    file = vae_folder(source) / "config.json"
    config = _read(file)
    try:
        return VaeFacts.of(str(config["_class_name"]), config)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} is not the config of a VAE that diffusers opens: {error}") from error


def text_facts(source: str | Path) -> TextFacts:
    """Of what `open_text_encoder` opens, from its config.

    Raises:
        UserError: there is none, or its config does not say.
    """
    if width := words_width(source):
        return TextFacts("words", width)
    file = text_folders(source)[0] / "config.json"
    config = _read(file)
    width = config.get("d_model") or config.get("hidden_size") or config.get("text_config", {}).get("hidden_size")
    if not isinstance(width, int):
        raise UserError(f"{file} does not say the width of its embeddings (d_model or hidden_size)")
    return TextFacts(str((config.get("architectures") or [config.get("model_type", "text encoder")])[0]), width)


def _read(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{file} holds a {type(value).__name__}, not a JSON object")
    return value
