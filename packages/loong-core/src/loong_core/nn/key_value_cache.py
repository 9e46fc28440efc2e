"""Keys and values of the tokens seen so far, so that generation computes each token once."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn import functional as F

from loong_core.data.batch import PackedBatch
from loong_kernels import packed_attention

_LEAST_ROOM = 256
"""Tokens of a sequence that room is made for at first."""


class KeyValueCache:
    """Holds `sequences` sequences of up to `max_length` tokens; room for them is made as they grow.

    The protocol: `decoder.logits(batch, cache=cache)` with a `PackedBatch` of the *new* tokens, sequence `i` of the
    batch being sequence `i` of the cache, and positions that continue (`positions` makes them). The first call brings
    the prompts, later ones usually a token each. `lengths` counts the tokens held; `rewind` takes some back.

    Args:
        sequences: how many.
        max_length: tokens of the longest, prompt and continuation together.
    """

    def __init__(self, sequences: int, max_length: int) -> None:
        self.lengths = [0] * sequences
        self.max_length = max_length
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def positions(self, new_lengths: list[int]) -> Tensor:
        """Positions of the next tokens of each sequence, `[sum(new_lengths)]` int64 on the host."""
        runs = [torch.arange(held, held + new) for held, new in zip(self.lengths, new_lengths, strict=True)]
        return torch.cat(runs)

    def rewind(self, lengths: list[int]) -> None:
        """Forget all but the first `lengths[i]` tokens of each sequence."""
        self.lengths = [min(held, kept) for held, kept in zip(self.lengths, lengths, strict=True)]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: PackedBatch, scale: float) -> Tensor:
        """Store the new keys and values of a layer and attend to all that its sequences hold.

        Args:
            layer: its global number.
            q: `[new tokens, heads, head_dim]`.
            k: `[new tokens, kv_heads, head_dim]`.
            v: as `k`.
            batch: the new tokens' batch.
            scale: factor on the scores.

        Returns:
            `[new tokens, heads, head_dim]`.
        """
        bounds = batch.cu_seqlens.tolist()
        longest = max(held + end - start for held, start, end in zip(self.lengths, bounds, bounds[1:]))
        keys, values = self._room(layer, k, min(longest, self.max_length))
        for index, held in enumerate(self.lengths):
            start, end = bounds[index], bounds[index + 1]
            if held + end - start > self.max_length:
                raise ValueError(
                    f"sequence {index} would hold {held + end - start} tokens, the cache has room for {self.max_length}"
                )
            keys[index, held : held + end - start] = k[start:end]
            values[index, held : held + end - start] = v[start:end]
        if not any(self.lengths):
            return packed_attention(q, k, v, batch.cu_seqlens, batch.max_seqlen, scale=scale)
        if batch.uniform_length is not None:
            return self._attend_together(q, keys, values, batch.uniform_length, scale)
        pieces = [
            self._attend_one(q[start:end], keys[index], values[index], self.lengths[index], scale)
            for index, (start, end) in enumerate(itertools.pairwise(bounds))
        ]
        return torch.cat(pieces)

    def advance(self, batch: PackedBatch) -> None:
        """Count the batch's tokens as held, once every layer has stored them."""
        bounds = batch.cu_seqlens.tolist()
        self.lengths = [held + end - start for held, start, end in zip(self.lengths, bounds, bounds[1:])]

    def _room(self, layer: int, k: Tensor, needed: int) -> tuple[Tensor, Tensor]:
        """The layer's `[sequences, room, kv_heads, head_dim]` keys and values, room being at least `needed`."""
        there = self._layers.get(layer)
        if there is None or there[0].shape[1] < needed:
            room = min(self.max_length, max(_LEAST_ROOM, 2 * needed))
            fresh = [k.new_zeros(len(self.lengths), room, *k.shape[1:]) for _ in range(2)]
            for new, old in zip(fresh, there or ()):
                new[:, : old.shape[1]] = old
            self._layers[layer] = there = (fresh[0], fresh[1])
        return there

    def _attend_together(self, q: Tensor, keys: Tensor, values: Tensor, new: int, scale: float) -> Tensor:
        """All sequences at once, each with `new` new tokens; what a sequence does not hold is masked out."""
        held = torch.tensor(self.lengths, device=q.device)
        longest = max(self.lengths) + new
        own = held[:, None] + torch.arange(new, device=q.device)  # [sequences, new]: position of each query
        seen = torch.arange(longest, device=q.device) <= own[:, :, None]  # [sequences, new, longest]
        queries = q.view(len(self.lengths), new, *q.shape[1:])
        return _masked_attention(queries, keys[:, :longest], values[:, :longest], seen, scale).reshape_as(q)

    def _attend_one(self, q: Tensor, keys: Tensor, values: Tensor, held: int, scale: float) -> Tensor:
        """One sequence with `held` tokens before the new ones of `q`, `[new, heads, head_dim]`."""
        end = held + q.shape[0]
        seen = torch.arange(end, device=q.device) <= torch.arange(held, end, device=q.device)[:, None]
        return _masked_attention(q[None], keys[None, :end], values[None, :end], seen[None], scale)[0]


def _masked_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Grouped-query attention of `[batch, new, heads, dim]` over `[batch, held, kv_heads, dim]` where `seen`."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None], scale=scale, enable_gqa=True)
    return attended.transpose(1, 2)
