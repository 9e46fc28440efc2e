"""The Wan transformer: self-attention over all patches of a video, cross-attention to its caption, modulated by time.

Equal to diffusers' `WanTransformer3DModel` (tests/families), on packed samples of any sizes. Timesteps and modulation
are in float32 whatever the precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.nn.full_attention import cross_attention, full_attention
from loong_core.nn.linear import ColumnParallelLinear
from loong_core.nn.norm import NormWeight
from loong_core.parallel.context import ParallelContext
from loong_dit.batch import DiffusionBatch
from loong_dit.families.wan.config import WanConfig
from loong_dit.nn.axial_rotary import axial_rotation
from loong_dit.nn.embeddings import PatchEmbedding, TwoLayers, sinusoids, wide
from loong_kernels import SequencePairs, gated_add, modulated_norm, rms_norm, wide_norm_rotary


class WanTransformer(nn.Module):
    """A Wan transformer.

    Weights are uninitialised: draw them (`loong_dit.model`) or load them.

    Args:
        config: its hyperparameters.
        context: its device, and the context ranks that share each sample.
        dtype: of the parameters, but for those of timesteps, which are float32 at least.
    """

    def __init__(self, config: WanConfig, context: ParallelContext, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        width, device = config.width, context.device
        self.patch_embedding = PatchEmbedding(config.in_channels, config.patch_size, width, device, dtype)
        self.time = TimeModulation(config, device, wide(dtype))
        self.text = TwoLayers(config.text_dim, width, "gelu_tanh", device, dtype)
        self.image = None if config.image_dim is None else ImageEmbedding(config, device, dtype)
        self.layers = nn.ModuleList(WanBlock(config, context, dtype) for _ in range(config.num_layers))
        self.proj_out = ColumnParallelLinear(width, config.patch_out, True, context, dtype)

    def forward(self, batch: DiffusionBatch) -> Tensor:
        """What the model says of each patch, `[tokens, patch_out]` in its dtype; a batch on the model's device."""
        config = self.config
        stream = self.patch_embedding(batch.patches)
        modulation, last = self.time(batch.timesteps)
        text = self.text(batch.text)
        image = None if self.image is None else self.image(batch.image)
        rotation = axial_rotation(batch.positions, config.rotary_axes)
        for number, layer in enumerate(self.layers):
            stream = layer(stream, BlockInputs(batch, modulation[:, number], rotation, text, image))
        shift, scale = last.unbind(1)
        return self.proj_out(modulated_norm(stream, scale, shift, batch.run_bounds, config.eps))


class TimeModulation(nn.Module):
    """From timesteps to the shifts, scales and gates of every block, and of the output.

    `table` holds every block's own part, so that it can be gathered at once and kept in float32.
    """

    keeps_float32 = True
    """Engines neither round these weights nor compute with them in less than float32."""

    def __init__(self, config: WanConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        width = config.width
        self.freq_dim = config.freq_dim
        self.embedder = TwoLayers(config.freq_dim, width, "silu", device, dtype)
        self.projection = nn.Linear(width, 6 * width, device=device, dtype=dtype)
        self.table = nn.Parameter(torch.empty(config.num_layers, 6, width, device=device, dtype=dtype))
        self.last_table = nn.Parameter(torch.empty(1, 2, width, device=device, dtype=dtype))

    def forward(self, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        """`[runs]` to `[runs, layers, 6, width]` and `[runs, 2, width]` (shift, scale)."""
        embedded = self.embedder(sinusoids(timesteps, self.freq_dim))
        projected = self.projection(F.silu(embedded)).unflatten(-1, (1, 6, -1))
        return self.table + projected, self.last_table + embedded[:, None]


class ImageEmbedding(nn.Module):
    """From the embeddings of condition images to the model's width: norm, linear, GELU, linear, norm."""

    def __init__(self, config: WanConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        assert config.image_dim is not None
        inputs, width = config.image_dim, config.width
        self.norm1 = nn.LayerNorm(inputs, device=device, dtype=dtype)
        self.linear_1 = nn.Linear(inputs, inputs, device=device, dtype=dtype)
        self.linear_2 = nn.Linear(inputs, width, device=device, dtype=dtype)
        self.norm2 = nn.LayerNorm(width, device=device, dtype=dtype)
        length = config.pos_embed_seq_len
        self.positions = None
        if length is not None:
            self.positions = nn.Parameter(torch.empty(1, length, inputs, device=device, dtype=dtype))

    def forward(self, x: Tensor | None) -> Tensor:
        """`[image tokens, image_dim]` to `[image tokens, width]`."""
        if x is None:
            raise ValueError("this model takes embeddings of condition images, and the batch has none")
        x = x.to(self.linear_1.weight.dtype)
        if self.positions is not None:
            x = (x.view(-1, *self.positions.shape[1:]) + self.positions).flatten(0, 1)
        return self.norm2(self.linear_2(F.gelu(self.linear_1(self.norm1(x)))))


@dataclass(frozen=True)
class BlockInputs:
    """What a block is given besides the stream.

    Attributes:
        batch: where samples and runs begin and end.
        modulation: `[runs, 6, width]`: shift, scale and gate of self-attention, then of the feed-forward layer.
        rotation: cosines and sines, `[tokens, head_dim / 2]` each.
        text: `[text tokens, width]`.
        image: `[image tokens, width]` or None.
    """

    batch: DiffusionBatch
    modulation: Tensor
    rotation: tuple[Tensor, Tensor]
    text: Tensor
    image: Tensor | None


class WanBlock(nn.Module):
    """Self-attention, cross-attention and feed-forward layer, the first and last modulated by time."""

    def __init__(self, config: WanConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        width = config.width
        self.eps = config.eps
        self.self_attention = SelfAttention(config, context, dtype)
        self.cross_norm = (
            nn.LayerNorm(width, config.eps, device=context.device, dtype=dtype) if config.cross_attn_norm else None
        )
        self.cross_attention = CrossAttention(config, context, dtype)
        self.up = ColumnParallelLinear(width, config.ffn_dim, True, context, dtype)
        self.down = ColumnParallelLinear(config.ffn_dim, width, True, context, dtype)

    def forward(self, stream: Tensor, inputs: BlockInputs) -> Tensor:
        """`[tokens, width]` to the same."""
        runs = inputs.batch.run_bounds
        shift, scale, gate, last_shift, last_scale, last_gate = inputs.modulation.unbind(1)
        normed = modulated_norm(stream, scale, shift, runs, self.eps)
        stream = gated_add(stream, self.self_attention(normed, inputs), gate, runs)
        normed = stream if self.cross_norm is None else self.cross_norm(stream)
        stream = stream + self.cross_attention(normed, inputs)
        normed = modulated_norm(stream, last_scale, last_shift, runs, self.eps)
        fed = self.down(F.gelu(self.up(normed), approximate="tanh"))
        return gated_add(stream, fed, last_gate, runs)


class SelfAttention(nn.Module):
    """Attention among the patches of a sample; queries and keys normalised over all heads together, then rotated."""

    def __init__(self, config: WanConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        width = config.width
        self.context, self.eps, self.head_dim = context, config.eps, config.attention_head_dim
        self.qkv = ColumnParallelLinear(width, 3 * width, True, context, dtype)
        self.query_norm = NormWeight(width, config.eps, context, dtype)
        self.key_norm = NormWeight(width, config.eps, context, dtype)
        self.output = ColumnParallelLinear(width, width, True, context, dtype)

    def forward(self, x: Tensor, inputs: BlockInputs) -> Tensor:
        """`[tokens, width]` to the same."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = wide_norm_rotary(q, self.query_norm(), *inputs.rotation, self.eps)  # [tokens, heads, head_dim]
        k = wide_norm_rotary(k, self.key_norm(), *inputs.rotation, self.eps)
        mixed = full_attention(q, k, v.unflatten(-1, (-1, self.head_dim)), inputs.batch, self.context)
        return self.output(mixed.flatten(1))


class CrossAttention(nn.Module):
    """Attention to the caption and, by keys and values of their own, to condition images where the model takes some."""

    def __init__(self, config: WanConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        width = config.width
        self.eps, self.head_dim = config.eps, config.attention_head_dim
        self.query = ColumnParallelLinear(width, width, True, context, dtype)
        self.key_value = ColumnParallelLinear(width, 2 * width, True, context, dtype)
        self.query_norm = NormWeight(width, config.eps, context, dtype)
        self.key_norm = NormWeight(width, config.eps, context, dtype)
        self.image_key_value = None
        if config.image_dim is not None:
            self.image_key_value = ColumnParallelLinear(width, 2 * width, True, context, dtype)
            self.image_key_norm = NormWeight(width, config.eps, context, dtype)
        self.output = ColumnParallelLinear(width, width, True, context, dtype)

    def forward(self, x: Tensor, inputs: BlockInputs) -> Tensor:
        """`[tokens, width]` to the same."""
        batch = inputs.batch
        q = self._heads(rms_norm(self.query(x), self.query_norm(), self.eps))
        mixed = self._attend(q, self.key_value(inputs.text), self.key_norm(), batch.text_pairs)
        if self.image_key_value is not None and inputs.image is not None:
            pairs = batch.image_pairs
            mixed = mixed + self._attend(q, self.image_key_value(inputs.image), self.image_key_norm(), pairs)
        return self.output(mixed.flatten(1))

    def _attend(self, q: Tensor, key_value: Tensor, norm: Tensor, pairs: SequencePairs | None) -> Tensor:
        assert pairs is not None
        k, v = key_value.chunk(2, dim=-1)
        return cross_attention(q, self._heads(rms_norm(k, norm, self.eps)), self._heads(v), pairs)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


def build(config: WanConfig, context: ParallelContext, dtype: torch.dtype) -> WanTransformer:
    """The family's module."""
    return WanTransformer(config, context, dtype)
