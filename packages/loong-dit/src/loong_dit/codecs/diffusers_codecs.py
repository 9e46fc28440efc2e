"""VAEs and text encoders of diffusers pipelines; needs the packages diffusers and transformers."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from loong_core.errors import UserError
from loong_dit.codecs.facts import VaeFacts
from loong_dit.data.cache import tensors_hash
from loong_dit.families.family import CaptionFrame
from loong_dit.media.buckets import fitted


class DiffusersVae:
    """A pipeline's `vae`, a picture's or a video's, with the normalisation of latents that its config gives.

    Threads take turns: a video's VAE keeps frames between its calls.

    Args:
        folder: the VAE's.
        device: where it computes.
        dtype: in what.

    Raises:
        UserError: diffusers is missing, or cannot open the folder.
    """

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self._device, self._dtype, self._turn = device, dtype, threading.Lock()
        self._vae = _opened("AutoencoderKL", folder, "vae").to(device, dtype).eval()
        config = self._vae.config
        facts = VaeFacts.of(type(self._vae).__name__, config)
        self.name, self.channels, self.steps = facts.name, facts.channels, facts.steps
        self.hash = _hash(self._vae, config)
        self.pixel_channels, self.weight_bytes = 3, _weight_bytes(self._vae)
        self._video = "z_dim" in config
        mean, deviation = config.get("latents_mean"), config.get("latents_std")
        if mean is not None and deviation is not None:
            self._mean, self._deviation = (torch.tensor(each).view(-1, 1, 1, 1) for each in (mean, deviation))
        else:
            shift, factor = config.get("shift_factor") or 0.0, config.get("scaling_factor") or 1.0
            self._mean, self._deviation = torch.tensor(float(shift)), torch.tensor(1 / float(factor))

    @torch.no_grad()
    def encode(self, video: Tensor) -> tuple[Tensor, Tensor]:
        """`[3, frames, rows, columns]` to mean and deviation of normalised latents, float32 on the host."""
        pixels = video.to(self._device, self._dtype)
        given = pixels[None] if self._video else pixels.transpose(0, 1)  # pictures have no axis of frames
        with self._turn:
            found = self._vae.encode(given).latent_dist
        mean, deviation = (
            (each[0] if self._video else each.transpose(0, 1)).float().cpu() for each in (found.mean, found.std)
        )
        return (mean - self._mean) / self._deviation, deviation / self._deviation

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """`[channels, frames, rows, columns]` to pixels, float32 on the host."""
        given = (latents.float().cpu() * self._deviation + self._mean).to(self._device, self._dtype)
        with self._turn:
            pixels = self._vae.decode(given[None] if self._video else given.transpose(0, 1)).sample
        return (pixels[0] if self._video else pixels.transpose(0, 1)).float().cpu().clamp(-1, 1)


class TransformersText:
    """A pipeline's `text_encoder` with its `tokenizer`: the last hidden states of a caption's tokens.

    Threads take turns: tokenizers are not made for several.

    Args:
        encoder: folder of the encoder.
        tokenizer: folder of the tokenizer.
        longest: tokens of a caption beyond which it is cut.
        device: where it computes.
        frame: what is around a caption.
        dtype: in what.

    Raises:
        UserError: transformers is missing, or cannot open a folder.
    """

    def __init__(
        self,
        encoder: Path,
        tokenizer: Path,
        longest: int,
        device: torch.device,
        frame: CaptionFrame,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise _missing(error) from error
        self._device, self._longest, self._frame = device, longest + frame.dropped, frame
        self._turn = threading.Lock()
        self._encoder = _text_encoder(encoder).to(device=device, dtype=dtype).eval()  # type: ignore[call-overload]
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer)
        except Exception as error:  # tokenizers fail in many ways
            raise UserError(f"{tokenizer} is not the folder of a tokenizer: {error}") from error
        config: Any = self._encoder.config
        self.name = type(self._encoder).__name__
        self.hash = _hash(self._encoder, config.to_dict() | {"longest": longest, "frame": frame.template})
        self.width = int(getattr(config, "d_model", None) or config.hidden_size)
        self.weight_bytes = _weight_bytes(self._encoder)

    @torch.no_grad()
    def encode(self, captions: Sequence[str]) -> list[Tensor]:
        """`[tokens, width]` of each caption, float32 on the host."""
        found = []
        for caption in captions:
            with self._turn:
                ids = self._tokenizer(
                    self._frame.template.format(" ".join(caption.split())),
                    truncation=True,
                    max_length=self._longest,
                    return_tensors="pt",
                ).to(self._device)
            states = self._encoder(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"])
            found.append(states.last_hidden_state[0, self._frame.dropped :].float().cpu())
        return found


class ClipImages:
    """A pipeline's `image_encoder`: the last but one hidden states of a picture's patches, as Wan 2.1 takes them."""

    MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

    def __init__(self, folder: Path, device: torch.device) -> None:
        try:
            from transformers import CLIPVisionModel
        except ImportError as error:
            raise _missing(error) from error
        try:
            self._encoder: Any = CLIPVisionModel.from_pretrained(folder).to(device).eval()  # type: ignore[arg-type]
        except Exception as error:  # a folder can be wrong in many ways
            raise UserError(f"{folder} is not the folder of an image encoder: {error}") from error
        self._device, self._side = device, int(self._encoder.config.image_size)
        self.weight_bytes = _weight_bytes(self._encoder)

    @torch.no_grad()
    def __call__(self, picture: Tensor) -> Tensor:
        """`[3, 1, rows, columns]` in -1 to 1 to `[image tokens, width]`, float32 on the host."""
        pixels = (fitted(picture, (self._side, self._side))[:, 0] + 1) / 2
        mean, deviation = (torch.tensor(each).view(3, 1, 1) for each in (self.MEAN, self.DEVIATION))
        given = ((pixels - mean) / deviation)[None].to(self._device)
        return self._encoder(given, output_hidden_states=True).hidden_states[-2][0].float().cpu()


def _text_encoder(folder: Path) -> nn.Module:
    from transformers import AutoConfig, AutoModel, T5EncoderModel, UMT5EncoderModel

    try:
        config = AutoConfig.from_pretrained(folder)
        kinds = {"umt5": UMT5EncoderModel, "t5": T5EncoderModel}
        kind: Any = kinds.get(config.model_type, AutoModel)
        return kind.from_pretrained(folder)
    except Exception as error:  # a folder can be wrong in many ways
        raise UserError(f"{folder} is not the folder of a text encoder: {error}") from error


def _opened(kind: str, folder: Path, role: str) -> Any:
    try:
        import diffusers
    except ImportError as error:
        raise _missing(error) from error
    try:
        name = json.loads((folder / "config.json").read_text(encoding="utf-8"))["_class_name"]
        return getattr(diffusers, name).from_pretrained(folder)
    except Exception as error:  # a folder can be wrong in many ways
        raise UserError(f"{folder} is not the folder of a {role} that diffusers opens: {error}") from error


def _hash(module: nn.Module, config: Any) -> str:
    """Of a module's weights and config."""
    told = {key: value for key, value in dict(config).items() if not key.startswith("_")}
    text = json.dumps(told, sort_keys=True, default=str)
    return hashlib.sha256((text + tensors_hash(module.state_dict())).encode()).hexdigest()[:32]


def _weight_bytes(module: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in module.parameters())


def _missing(error: ImportError) -> UserError:
    return UserError(f"{error.name} is not installed; pip install 'loong-dit[diffusers]'")
