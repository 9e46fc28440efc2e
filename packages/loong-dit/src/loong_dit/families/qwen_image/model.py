"""The Qwen-Image transformer: text and image in streams of their own that meet in attention, modulated by time.

Equal to diffusers' `QwenImageTransformer2DModel` (tests/families), on packed samples of any sizes. References (of
Qwen-Image-Edit) are further tokens of the image stream. What the last block would make of the text is not computed: it
reaches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.nn.full_attention import full_attention
from loong_core.nn.linear import ColumnParallelLinear
from loong_core.nn.norm import NormWeight
from loong_core.parallel.context import ParallelContext
from loong_dit.batch import DiffusionBatch
from loong_dit.families.qwen_image.config import FREQ_DIM, QwenImageConfig
from loong_dit.joint_sequences import JointSequences
from loong_dit.nn.axial_rotary import axial_rotation
from loong_dit.nn.embeddings import TwoLayers, sinusoids, wide
from loong_kernels import gated_add, modulated_norm, rms_norm, wide_norm_rotary

Rotation = tuple[Tensor, Tensor]


def build(config: QwenImageConfig, context: ParallelContext, dtype: torch.dtype) -> QwenImageTransformer:
    """The family's module."""
    return QwenImageTransformer(config, context, dtype)


class TimeEmbedding(TwoLayers):
    """From timesteps to the vectors that modulation is made of, in float32 whatever the precision."""

    keeps_float32 = True

    def forward(self, x: Tensor) -> Tensor:
        """`[runs]` to `[runs, width]`."""
        return super().forward(sinusoids(x, FREQ_DIM))


@dataclass(frozen=True)
class BlockInputs:
    """What a block is given besides the streams.

    Attributes:
        joint: the sequences of text and image.
        image_time: `[runs, width]` after SiLU, of each run of the image stream.
        text_time: `[samples, width]` after SiLU, of each caption.
        runs: `[runs + 1]` int32, where runs begin and end.
        texts: `[samples + 1]` int32, where captions begin and end.
        image_rotation: cosines and sines of every head of every image token, `[tokens x heads, head_dim / 2]` each.
        text_rotation: likewise of text tokens.
        context: passed on to attention.
    """

    joint: JointSequences
    image_time: Tensor
    text_time: Tensor
    runs: Tensor
    texts: Tensor
    image_rotation: Rotation
    text_rotation: Rotation
    context: ParallelContext


class QwenImageTransformer(nn.Module):
    """A Qwen-Image transformer.

    Weights are uninitialised: draw them (`loong_dit.model`) or load them.

    Args:
        config: its hyperparameters.
        context: its device, and the context ranks that share each sample's text and patches.
        dtype: of the parameters, but for those of timesteps, which are float32 at least.
    """

    def __init__(self, config: QwenImageConfig, context: ParallelContext, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.context = config, context
        width, device = config.width, context.device
        self.image_in = nn.Linear(config.patch_elements, width, device=device, dtype=dtype)
        self.text_norm = NormWeight(config.text_dim, config.eps, context, dtype)
        self.text_in = nn.Linear(config.text_dim, width, device=device, dtype=dtype)
        self.time = TimeEmbedding(FREQ_DIM, width, "silu", device, wide(dtype))
        self.layers = nn.ModuleList(
            QwenImageBlock(config, context, dtype, last=number == config.num_layers - 1)
            for number in range(config.num_layers)
        )
        self.last_modulation = nn.Linear(width, 2 * width, device=device, dtype=dtype)
        self.proj_out = ColumnParallelLinear(width, config.patch_elements, True, context, dtype)

    def forward(self, batch: DiffusionBatch) -> Tensor:
        """What the model says of each patch, `[tokens, patch_elements]` in its dtype; a batch on the model's device."""
        config, dtype, joint = self.config, self.image_in.weight.dtype, batch.joint
        if joint is None:
            raise ValueError("Qwen-Image attends to text and patches together, and the batch keeps them apart")
        image = self.image_in(batch.patches.to(dtype))
        text = self.text_in(rms_norm(batch.text.to(dtype), self.text_norm(), config.eps))
        embedded = F.silu(self.time(torch.cat([batch.timesteps, joint.text_timesteps])))
        time, text_time = embedded.tensor_split([batch.timesteps.shape[0]])
        inputs = BlockInputs(
            joint,
            time,
            text_time,
            batch.run_bounds,
            batch.text_pairs.cu_seqlens_k,
            self._rotation(batch.positions),
            self._rotation(joint.text_positions),
            self.context,
        )
        for layer in self.layers:
            image, text = layer(image, text, inputs)
        scale, shift = self.last_modulation(time.to(dtype)).to(wide(dtype)).chunk(2, dim=-1)
        return self.proj_out(modulated_norm(image, scale, shift, batch.run_bounds, config.eps))

    def _rotation(self, positions: Tensor) -> Rotation:
        """Cosines and sines of every head of every token."""
        cos, sin = axial_rotation(positions, self.config.rotary_axes, dtype=torch.float32)
        heads = self.config.num_attention_heads
        return cos.repeat_interleave(heads, dim=0), sin.repeat_interleave(heads, dim=0)


class QwenImageBlock(nn.Module):
    """Both streams: attention among all tokens of a sample, then a feed-forward layer each."""

    def __init__(self, config: QwenImageConfig, context: ParallelContext, dtype: torch.dtype, *, last: bool) -> None:
        super().__init__()
        self.last = last
        self.image = Stream(config, context, dtype)
        self.text = Stream(config, context, dtype)

    def forward(self, image: Tensor, text: Tensor, inputs: BlockInputs) -> tuple[Tensor, Tensor]:
        """`[tokens, width]` and `[text tokens, width]` to the same; the last block leaves the text as it is."""
        of_image = self.image.modulated_by(inputs.image_time)
        of_text = self.text.modulated_by(inputs.text_time)
        image_qkv = self.image.project(image, of_image, inputs.runs, inputs.image_rotation)
        text_qkv = self.text.project(text, of_text, inputs.texts, inputs.text_rotation)
        q, k, v = (inputs.joint.join(own, other) for own, other in zip(text_qkv, image_qkv, strict=True))
        mixed = full_attention(q, k, v, inputs.joint, inputs.context).flatten(1)
        from_text, from_image = inputs.joint.part(mixed, text.shape[0])
        image = self.image.go_on(image, from_image, of_image, inputs.runs)
        return image, text if self.last else self.text.go_on(text, from_text, of_text, inputs.texts)


class Stream(nn.Module):
    """One stream's half of a block."""

    def __init__(self, config: QwenImageConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        width, head = config.width, config.attention_head_dim
        self.eps, self.head_dim = config.eps, head
        self.modulation = ColumnParallelLinear(width, 6 * width, True, context, dtype)
        self.qkv = ColumnParallelLinear(width, 3 * width, True, context, dtype)
        self.query_norm = NormWeight(head, config.eps, context, dtype)
        self.key_norm = NormWeight(head, config.eps, context, dtype)
        self.output = ColumnParallelLinear(width, width, True, context, dtype)
        self.up = ColumnParallelLinear(width, 4 * width, True, context, dtype)
        self.down = ColumnParallelLinear(4 * width, width, True, context, dtype)

    def modulated_by(self, time: Tensor) -> tuple[Tensor, ...]:
        """Shift, scale and gate of attention, then of the feed-forward layer, `[runs, width]` each, in float32."""
        dtype = self.modulation.weight.dtype
        return self.modulation(time.to(dtype)).to(wide(dtype)).chunk(6, dim=-1)

    def project(self, x: Tensor, modulation: tuple[Tensor, ...], runs: Tensor, rotation: Rotation) -> list[Tensor]:
        """Rotated queries and keys, normalised head by head, and values: `[tokens, heads, head_dim]` each."""
        shift, scale = modulation[:2]
        q, k, v = self.qkv(modulated_norm(x, scale, shift, runs, self.eps)).chunk(3, dim=-1)
        v = v.unflatten(-1, (-1, self.head_dim))
        q, k = (
            wide_norm_rotary(each.reshape(-1, self.head_dim), norm(), *rotation, self.eps).view(v.shape)
            for each, norm in ((q, self.query_norm), (k, self.key_norm))
        )
        return [q, k, v]

    def go_on(self, x: Tensor, mixed: Tensor, modulation: tuple[Tensor, ...], runs: Tensor) -> Tensor:
        """Add what attention gave, and the feed-forward layer."""
        _, _, gate, shift, scale, last_gate = modulation
        x = gated_add(x, self.output(mixed), gate, runs)
        hidden = self.up(modulated_norm(x, scale, shift, runs, self.eps))
        return gated_add(x, self.down(F.gelu(hidden, approximate="tanh")), last_gate, runs)
