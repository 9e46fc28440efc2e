"""The transformer block of vision towers: pre-norm, attention without a mask within segments, feed-forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.nn.block import Block
from loong_core.nn.decoder_config import FeedForwardConfig
from loong_core.nn.feed_forward import FeedForward
from loong_core.nn.layer_norm import ResidualLayerNorm
from loong_core.nn.linear import ColumnParallelLinear, RowParallelLinear
from loong_core.nn.norm import NormWeight, ResidualNorm
from loong_core.parallel.collectives import copy_to_all, gather_tokens, own_tokens, sum_over
from loong_core.parallel.context import Axis, ParallelContext
from loong_kernels import attention, packed_attention, qk_norm_rotary, rms_norm, rotary
from loong_vlm.features import TowerFeatures
from loong_vlm.towers.axial_rotary import Rotation
from loong_vlm.towers.block_config import Activation, VisionBlockConfig
from loong_vlm.towers.patch_order import Segments

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
}
"""By their names in `config.json`."""


class VisionAttention(nn.Module):
    """`output(softmax(q k^T / sqrt(head_dim)) v)` within segments, each patch seeing all of its own."""

    def __init__(self, config: VisionBlockConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        if config.num_heads % context.tensor.size:
            raise ValueError(
                f"layout.tensor={context.tensor.size} does not divide {config.num_heads} heads of the vision tower"
            )
        self.heads = config.num_heads // context.tensor.size
        self.norm_eps = config.norm_eps
        local = self.heads * config.head_dim
        self.qkv = ColumnParallelLinear(config.width, 3 * local, config.qkv_bias, context, dtype)
        self.output = RowParallelLinear(local, config.width, True, context, dtype)
        self.query_norm = self.key_norm = None
        if config.qk_norm:
            self.query_norm = AllHeadsNorm(config.width, config.norm_eps, context, dtype)
            self.key_norm = AllHeadsNorm(config.width, config.norm_eps, context, dtype)

    def forward(self, x: Tensor, patches: int, segments: Segments, rotation: Rotation | None) -> Tensor:
        """Mix patches within each segment.

        Args:
            x: `[patches / tensor, width]`, this rank's run of normalised patches.
            patches: how many there are in all.
            segments: which see each other, on the device.
            rotation: of queries and keys; None for none.

        Returns:
            As `x`.
        """
        q, k, v = self._project(self.qkv.of_runs(x, patches), rotation)  # [patches, heads, head_dim] each
        if segments.uniform is not None:
            parts = (each.unflatten(0, (-1, segments.uniform)) for each in (q, k, v))
            mixed = attention(*parts, causal=False).flatten(0, 1)
        else:
            mixed = packed_attention(q, k, v, segments.bounds, segments.longest, causal=False)
        return self.output(mixed.flatten(1))

    def _project(self, qkv: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        if self.query_norm is None and rotation is not None:
            q, k, v = qk_norm_rotary(qkv, rotation.cos, rotation.sin, heads=self.heads, kv_heads=self.heads)
        else:
            q, k, v = qkv.chunk(3, dim=-1)
            if self.query_norm is not None and self.key_norm is not None:
                q, k = self.query_norm(q), self.key_norm(k)
            q, k, v = (each.unflatten(-1, (self.heads, -1)) for each in (q, k, v))
            if rotation is not None:
                q, k = rotary(q, k, rotation.cos, rotation.sin)
        if rotation is not None and rotation.learnt is not None:
            q, k = rotation.learnt.follow(q, k)
        return q, k, v


class AllHeadsNorm(NormWeight):
    """RMSNorm over all heads together, of which tensor ranks have some each; the weight is whole on every rank."""

    def __init__(self, size: int, eps: float, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__(size, eps, context, dtype)
        self.axis = context.tensor

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Normalise `[patches, width / tensor]`, this rank's heads of all patches."""
        if self.axis.size == 1:
            return rms_norm(x, self.weight, self.eps)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        squares = wide.square().sum(-1, keepdim=True)
        # Each rank scales its own heads by the mean of all, so the ranks' gradients of the mean are added up.
        mean = copy_to_all(sum_over(squares, self.axis), self.axis) / self.weight.shape[0]
        own = self.weight.view(self.axis.size, -1)[self.axis.rank]
        return (wide * torch.rsqrt(mean + self.eps)).to(x.dtype) * own


class PlainFeedForward(nn.Module):
    """`down(act(up(x)))`, both with a bias."""

    def __init__(self, config: VisionBlockConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        local, rest = divmod(config.intermediate_size, context.tensor.size)
        if rest:
            raise ValueError(
                f"layout.tensor={context.tensor.size} does not divide the vision tower's feed-forward width of "
                f"{config.intermediate_size}"
            )
        self.activation = ACTIVATIONS[config.activation]
        self.up = ColumnParallelLinear(config.width, local, True, context, dtype)
        self.down = RowParallelLinear(local, config.width, True, context, dtype)

    def forward(self, x: Tensor, patches: int) -> Tensor:
        """Transform this rank's run of `patches` patches, `[patches / tensor, width]`."""
        return self.down(self.activation(self.up.of_runs(x, patches)))


class VisionBlock(nn.Module):
    """`x + scale_1 * attention(norm(x))`, then `x + scale_2 * feed_forward(norm(x))`; the scales may be left out."""

    def __init__(self, config: VisionBlockConfig, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        norm = ResidualNorm if config.norm == "rms_norm" else ResidualLayerNorm
        self.attention_norm = norm(config.width, config.norm_eps, context, dtype)
        self.attention = VisionAttention(config, context, dtype)
        self.feed_forward_norm = norm(config.width, config.norm_eps, context, dtype)
        if config.gated:
            gated = FeedForwardConfig(config.intermediate_size, bias=True)
            self.feed_forward: nn.Module = FeedForward(config.width, gated, context, dtype)
        else:
            self.feed_forward = PlainFeedForward(config, context, dtype)
        self.attention_scale = self.feed_forward_scale = None
        if config.layer_scale:
            self.attention_scale = nn.Parameter(torch.ones(config.width, device=context.device, dtype=dtype))
            self.feed_forward_scale = nn.Parameter(torch.ones(config.width, device=context.device, dtype=dtype))
            for scale in (self.attention_scale, self.feed_forward_scale):
                scale.sequence_parallel = context.sequence_parallel  # type: ignore[attr-defined]

    def forward(
        self, stream: Tensor, added: Tensor | None, patches: int, segments: Segments, rotation: Rotation | None
    ) -> tuple[Tensor, Tensor]:
        """Transform this rank's run of patches, `[patches / tensor, width]`.

        Args:
            stream: the residual stream.
            added: what the block before adds to it; None for the first.
            patches: how many there are in all.
            segments: see `VisionAttention`.
            rotation: likewise.

        Returns:
            the stream, and what this block's feed-forward adds to it.
        """
        x, stream = self.attention_norm(stream, added)
        mixed = _scaled(self.attention(x, patches, segments, rotation), self.attention_scale)
        x, stream = self.feed_forward_norm(stream, mixed)
        return stream, _scaled(self.feed_forward(x, patches), self.feed_forward_scale)

    fewer_inputs = staticmethod(Block.fewer_inputs)
    """Both kinds of norm here round the sum before they normalise it, as a decoder block's do."""


def through_blocks(
    blocks: Iterable[nn.Module],
    embedded: Tensor,
    axis: Axis,
    segments: Callable[[int], Segments],
    rotation: Rotation | None = None,
    levels: Sequence[int] = (),
) -> TowerFeatures:
    """Embedded patches through blocks that tensor ranks share, each having a run of the patches between them.

    Args:
        blocks: one after the other.
        embedded: `[patches, width]`, whole on every tensor rank.
        axis: the tensor ranks.
        segments: of a block, by its number: which patches see each other.
        rotation: of queries and keys.
        levels: blocks whose outputs are handed out too.

    Returns:
        features of all patches, on every tensor rank.
    """
    count = embedded.shape[0]
    stream, added, handed = own_tokens(embedded, axis), None, {}
    for number, block in enumerate(blocks):
        stream, added = block(stream, added, count, segments(number), rotation)
        if number in levels:
            handed[number] = gather_tokens(stream + added, axis, count)
    last = gather_tokens(stream if added is None else stream + added, axis, count)
    return TowerFeatures(last, tuple(handed[number] for number in levels))


def _scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    return x if scale is None else x * scale
