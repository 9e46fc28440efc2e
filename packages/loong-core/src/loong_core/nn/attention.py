"""Grouped-query attention over packed sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from loong_core.data.batch import PackedBatch
from loong_core.nn.context_attention import exchange_for_heads, exchange_for_tokens, ring_attention
from loong_core.nn.decoder_config import AttentionConfig
from loong_core.nn.key_value_cache import KeyValueCache
from loong_core.nn.linear import ColumnParallelLinear, RowParallelLinear
from loong_core.nn.norm import NormWeight
from loong_core.parallel.collectives import gather_tokens
from loong_core.parallel.context import ALONE, ParallelContext
from loong_kernels import attention, packed_attention, qk_norm_rotary, rms_norm, rotary


class Attention(nn.Module):
    """`output(softmax(q k^T / sqrt(head_dim)) v)` with rotated q and k, causal within each sequence (arXiv:2305.13245).

    Each tensor rank has its share of the heads. Its queries, keys and values are one matrix, in that order of rows.
    With more tensor ranks than key-value heads each of these is held by several ranks; then `query` and `key_value`
    are two matrices, because the copies' gradients are summed and counted once, and the queries' are not.

    Args:
        hidden_size: width of the residual stream.
        config: the attention's shape.
        norm_eps: epsilon of the query and key norms.
        context: the tensor axis shares the heads, the context axis the tokens.
        dtype: of the parameters.
        layer: global number of the block, for the key-value cache.
    """

    def __init__(
        self,
        hidden_size: int,
        config: AttentionConfig,
        norm_eps: float,
        context: ParallelContext,
        dtype: torch.dtype,
        layer: int,
    ) -> None:
        super().__init__()
        self.axis = context.tensor
        self.ulysses, self.ring = context.ulysses, context.ring
        self.layer = layer
        self.head_dim = config.head_dim
        self.norm_eps = norm_eps
        self.scale = config.head_dim**-0.5
        self.heads, self.kv_heads, replicas = local_heads(config, self.axis.size)
        if self.heads % self.ulysses.size:
            raise ValueError(
                f"layout.ulysses={self.ulysses.size} does not divide the {self.heads} attention heads of a tensor rank"
            )
        query, key_value = self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim
        if replicas == 1:
            self.qkv = ColumnParallelLinear(hidden_size, query + key_value, config.qkv_bias, context, dtype)
        else:
            # On the meta device a model is only measured, and there need be no ranks to make a group of.
            copies = ALONE if context.device.type == "meta" else context.tensor_replicas(replicas)
            self.query = ColumnParallelLinear(hidden_size, query, config.qkv_bias, context, dtype)
            self.key_value = ColumnParallelLinear(hidden_size, key_value, config.qkv_bias, context, dtype, copies)
        self.fused = replicas == 1
        self.query_norm = NormWeight(self.head_dim, norm_eps, context, dtype) if config.qk_norm else None
        self.key_norm = NormWeight(self.head_dim, norm_eps, context, dtype) if config.qk_norm else None
        self.output = RowParallelLinear(query, hidden_size, config.output_bias, context, dtype)

    def forward(
        self, x: Tensor, batch: PackedBatch, rotation: tuple[Tensor, Tensor], cache: KeyValueCache | None = None
    ) -> Tensor:
        """Mix tokens within each sequence.

        Args:
            x: `[tokens / tensor, hidden_size]`, this rank's run of normalised tokens.
            batch: where sequences begin and end.
            rotation: cosine and sine, `[tokens, rotary_dim / 2]` each.
            cache: where earlier tokens' keys and values are, in generation.

        Returns:
            As `x`.
        """
        q, k, v = self._project(
            x, batch.tokens.shape[0], rotation
        )  # [tokens, heads, head_dim], [tokens, kv_heads, head_dim] twice
        if cache is not None:
            mixed = cache.attend(self.layer, q, k, v, batch, self.scale)
        else:
            mixed = self._attend(q, k, v, batch)
        return self.output(mixed.flatten(1))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, batch: PackedBatch) -> Tensor:
        """Causal attention within each sequence, `[tokens, heads, head_dim]`, on one context rank or several."""
        share = batch.share
        if share is not None:
            q, k, v = exchange_for_heads(q, k, v, self.ulysses, share)
        if share is not None and self.ring.size > 1:
            mixed = ring_attention(q, k, v, self.ring, share, self.scale)
        elif batch.uniform_length is not None:
            q, k, v = (each.unflatten(0, (-1, batch.uniform_length)) for each in (q, k, v))
            mixed = attention(q, k, v, scale=self.scale).flatten(0, 1)
        else:
            mixed = packed_attention(q, k, v, batch.cu_seqlens, batch.max_seqlen, scale=self.scale)
        return mixed if share is None else exchange_for_tokens(mixed, self.ulysses, share)

    def _project(self, x: Tensor, tokens: int, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """This rank's heads of all tokens: rotated queries and keys, and values; `x` is this rank's run of tokens."""
        q_weight = k_weight = None
        if self.query_norm is not None and self.key_norm is not None:
            q_weight, k_weight = self.query_norm(), self.key_norm()
        if self.fused:
            return qk_norm_rotary(
                self.qkv.of_runs(x, tokens),
                *rotation,
                heads=self.heads,
                kv_heads=self.kv_heads,
                q_weight=q_weight,
                k_weight=k_weight,
                eps=self.norm_eps,
            )
        x = gather_tokens(x, self.axis, tokens)  # once for both
        q = self.query(x).unflatten(-1, (-1, self.head_dim))
        k, v = self.key_value(x).unflatten(-1, (2, self.kv_heads, self.head_dim)).unbind(1)
        if q_weight is not None and k_weight is not None:
            q, k = rms_norm(q, q_weight, self.norm_eps), rms_norm(k, k_weight, self.norm_eps)
        return *rotary(q, k, *rotation), v


def local_heads(config: AttentionConfig, tensor: int) -> tuple[int, int, int]:
    """Query heads and key-value heads on each of `tensor` ranks, and how many ranks hold the same key-value heads.

    Raises:
        ValueError: if the degree does not divide the query heads, or neither divides nor is divided by the key-value
            heads.
    """
    if config.num_heads % tensor:
        raise ValueError(f"layout.tensor={tensor} does not divide {config.num_heads} attention heads")
    if config.num_kv_heads % tensor == 0:
        return config.num_heads // tensor, config.num_kv_heads // tensor, 1
    if tensor % config.num_kv_heads:
        raise ValueError(
            f"layout.tensor={tensor} neither divides {config.num_kv_heads} key-value heads nor is a multiple of them"
        )
    return config.num_heads // tensor, 1, tensor // config.num_kv_heads
