"""A Wan transformer's hyperparameters, from diffusers' `config.json`; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from loong_dit.families.config_reader import ConfigReader
from loong_dit.families.family import TEXT_LENGTH


@dataclass(frozen=True)
class WanConfig:
    """What a Wan transformer is made of (Wan 2.1 and 2.2, arXiv:2503.20314).

    Attributes:
        patch_size: frames, rows and columns of latents in a token.
        num_attention_heads: heads of every attention.
        attention_head_dim: width of a head.
        in_channels: channels of the input, conditions included.
        out_channels: channels of what it predicts.
        text_dim: width of a caption's embeddings.
        freq_dim: width of the sinusoids of a timestep.
        ffn_dim: inner width of the feed-forward layers.
        num_layers: blocks.
        cross_attn_norm: whether the stream is normalised before cross-attention.
        eps: of every norm.
        image_dim: width of condition images' embeddings, None where the model takes none.
        pos_embed_seq_len: tokens of the learned positions of condition images, None where there are none.
    """

    patch_size: tuple[int, int, int]
    num_attention_heads: int
    attention_head_dim: int
    in_channels: int
    out_channels: int
    text_dim: int
    freq_dim: int
    ffn_dim: int
    num_layers: int
    cross_attn_norm: bool
    eps: float
    image_dim: int | None
    pos_embed_seq_len: int | None

    @property
    def width(self) -> int:
        """Of the residual stream."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def patch_in(self) -> int:
        """Numbers in a token's input patch."""
        return self.in_channels * prod(self.patch_size)

    @property
    def patch_out(self) -> int:
        """Numbers in a token's predicted patch."""
        return self.out_channels * prod(self.patch_size)

    @property
    def rotary_axes(self) -> tuple[int, int, int]:
        """Elements of a head that frames, rows and columns turn."""
        side = 2 * (self.attention_head_dim // 6)
        return self.attention_head_dim - 2 * side, side, side

    def flops_per_sample(self, tokens: float, text_tokens: float, *, weight_gradients: bool = True) -> float:
        """Of forward and backward: 6 for each parameter and token that meet, 12 x width for each pair in attention.

        Without the weights' gradients (adapters) it is 4 for each parameter. Recomputation is not counted; nor are
        norms, modulation and the embedding of timesteps.
        """
        width, layers = self.width, self.num_layers
        by_token = layers * (6 * width * width + 2 * width * self.ffn_dim) + width * (self.patch_in + self.patch_out)
        by_text = layers * 2 * width * width + width * (self.text_dim + width)
        pairs = layers * width * tokens * (tokens + text_tokens)
        return (6 if weight_gradients else 4) * (by_token * tokens + by_text * text_tokens) + 12 * pairs


def read_config(hf: dict[str, Any]) -> WanConfig:
    """Read a transformer's `config.json`.

    Raises:
        UserError: with every key that is missing, of a wrong kind, or asks for what is not there.
    """
    read = ConfigReader(hf)
    patch = read.whole_numbers("patch_size", 3, default=(1, 2, 2))
    config = WanConfig(
        patch_size=(patch[0], patch[1], patch[2]),
        num_attention_heads=read.whole("num_attention_heads"),
        attention_head_dim=read.whole("attention_head_dim"),
        in_channels=read.whole("in_channels"),
        out_channels=read.whole("out_channels"),
        text_dim=read.whole("text_dim"),
        freq_dim=read.whole("freq_dim", default=256),
        ffn_dim=read.whole("ffn_dim"),
        num_layers=read.whole("num_layers"),
        cross_attn_norm=read.truth("cross_attn_norm", default=True),
        eps=read.number("eps", default=1e-6),
        image_dim=read.whole_or_none("image_dim"),
        pos_embed_seq_len=read.whole_or_none("pos_embed_seq_len"),
    )
    read.only("qk_norm", "rms_norm_across_heads", default="rms_norm_across_heads")
    added = read.whole_or_none("added_kv_proj_dim")
    if (added is None) != (config.image_dim is None) or added not in (None, config.width):
        read.fault(
            "added_kv_proj_dim", f"is {added} while image_dim is {config.image_dim} and the width {config.width}"
        )
    if config.attention_head_dim % 2:
        read.fault("attention_head_dim", f"is {config.attention_head_dim}; rotary embedding takes an even one")
    read.finish(ignored=("rope_max_seq_len", "window_size"))
    return config


def diffusers_config(original: dict[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Diffusers' `config.json` from that of Wan's own release (`_class_name` WanModel).

    Args:
        original: the release's config.
        tensors: shapes of its weights by name: they tell whether condition images are seen through an encoder.

    Raises:
        UserError: with every key that is missing or not served.
    """
    read = ConfigReader(original)
    heads, width = read.whole("num_heads"), read.whole("dim")
    if width % heads:
        read.fault("dim", f"is {width}, which num_heads {heads} does not divide")
    read.one_of("model_type", ("t2v", "i2v", "ti2v", "flf2v"), default="t2v")
    encoder, positions = tensors.get("img_emb.proj.0.weight"), tensors.get("img_emb.emb_pos")
    hf = {
        "_class_name": "WanTransformer3DModel",
        "patch_size": [1, 2, 2],
        "num_attention_heads": heads,
        "attention_head_dim": width // heads,
        "in_channels": read.whole("in_dim"),
        "out_channels": read.whole("out_dim"),
        "text_dim": read.whole("text_dim", default=4096),
        "freq_dim": read.whole("freq_dim", default=256),
        "ffn_dim": read.whole("ffn_dim"),
        "num_layers": read.whole("num_layers"),
        "cross_attn_norm": read.truth("cross_attn_norm", default=True),
        "eps": read.number("eps", default=1e-6),
        "qk_norm": "rms_norm_across_heads",
        "image_dim": encoder[0] if encoder else None,
        "added_kv_proj_dim": width if encoder else None,
        "pos_embed_seq_len": positions[1] if positions else None,
        "rope_max_seq_len": 1024,
    }
    read.only("qk_norm", True, default=True)
    text_length = read.whole("text_len", default=512)
    read.finish(ignored=("patch_size", "window_size"))
    return hf if text_length == 512 else {**hf, TEXT_LENGTH: text_length}


def original_config(hf: dict[str, Any]) -> dict[str, Any]:
    """The `config.json` of Wan's own release from diffusers'."""
    config = read_config(hf)
    given = config.in_channels > config.out_channels
    kind = "flf2v" if config.pos_embed_seq_len is not None else "i2v" if given else "t2v"
    return {
        "_class_name": "WanModel",
        "model_type": kind,
        "dim": config.width,
        "eps": config.eps,
        "ffn_dim": config.ffn_dim,
        "freq_dim": config.freq_dim,
        "in_dim": config.in_channels,
        "num_heads": config.num_attention_heads,
        "num_layers": config.num_layers,
        "out_dim": config.out_channels,
        "text_len": hf.get(TEXT_LENGTH, 512),
        **({"text_dim": config.text_dim} if config.text_dim != 4096 else {}),
        **({} if config.cross_attn_norm else {"cross_attn_norm": False}),
    }
