"""A Qwen-Image transformer's hyperparameters, from diffusers' `config.json`; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loong_dit.families.config_reader import ConfigReader

FREQ_DIM = 256
"""Width of the sinusoids of a timestep."""


@dataclass(frozen=True)
class QwenImageConfig:
    """What a Qwen-Image transformer is made of (arXiv:2508.02324).

    Attributes:
        side: rows and columns of latents in a token.
        num_attention_heads: heads of every attention.
        attention_head_dim: width of a head.
        channels: of the latents.
        text_dim: width of a caption's embeddings.
        num_layers: blocks.
        rotary_axes: elements of a head that images, rows and columns turn.
    """

    side: int
    num_attention_heads: int
    attention_head_dim: int
    channels: int
    text_dim: int
    num_layers: int
    rotary_axes: tuple[int, int, int]
    image_dim: None = None
    eps: float = 1e-6

    @property
    def patch_size(self) -> tuple[int, int, int]:
        """Frames, rows and columns of latents in a token."""
        return 1, self.side, self.side

    @property
    def width(self) -> int:
        """Of the residual streams."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def in_channels(self) -> int:
        """Channels of the input latents."""
        return self.channels

    @property
    def out_channels(self) -> int:
        """Channels of what it predicts."""
        return self.channels

    @property
    def patch_elements(self) -> int:
        """Numbers in a token's patch."""
        return self.channels * self.side**2

    def flops_per_sample(self, tokens: float, text_tokens: float, *, weight_gradients: bool = True) -> float:
        """Of forward and backward: 6 for each parameter and token that meet, 12 x width for each pair in attention.

        Without the weights' gradients (adapters) it is 4 for each parameter. Recomputation is not counted; nor are
        norms, modulation and the embedding of timesteps.
        """
        width, together = self.width, tokens + text_tokens
        products = 12 * self.num_layers * width * width * together
        products += 2 * width * self.patch_elements * tokens + width * self.text_dim * text_tokens
        return (6 if weight_gradients else 4) * products + 12 * self.num_layers * width * together * together


def read_config(hf: dict[str, Any]) -> QwenImageConfig:
    """Read a transformer's `config.json`.

    Raises:
        UserError: with every key that is missing, of a wrong kind, or asks for what is not there.
    """
    read = ConfigReader(hf)
    side, packed, channels = read.whole("patch_size", default=2), read.whole("in_channels"), read.whole("out_channels")
    axes = read.whole_numbers("axes_dims_rope", 3, default=(16, 56, 56))
    config = QwenImageConfig(
        side=side,
        num_attention_heads=read.whole("num_attention_heads"),
        attention_head_dim=read.whole("attention_head_dim"),
        channels=channels,
        text_dim=read.whole("joint_attention_dim"),
        num_layers=read.whole("num_layers"),
        rotary_axes=(axes[0], axes[1], axes[2]),
    )
    if packed != config.patch_elements:
        read.fault("in_channels", f"is {packed}, not out_channels {channels} x patch_size {side} squared")
    if sum(axes) != config.attention_head_dim or any(axis % 2 for axis in axes):
        read.fault("axes_dims_rope", f"is {axes}, not three even numbers that add up to {config.attention_head_dim}")
    read.only("guidance_embeds", False, default=False)
    read.only("use_additional_t_cond", False, default=False)
    read.only("use_layer3d_rope", False, default=False)
    read.truth("zero_cond_t", default=False)
    read.finish(ignored=("pooled_projection_dim",))
    return config
