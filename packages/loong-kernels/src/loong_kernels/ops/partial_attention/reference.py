"""Partial attention in plain PyTorch, one pair of runs at a time: what every implementation must equal."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from loong_kernels.ops.partial_attention.pairs import SequencePairs


def partial_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, pairs: SequencePairs, scale: float
) -> tuple[Tensor, Tensor]:
    """Each run's softmax over its scores, in float32 (float64 for float64), and the logarithm of its denominator."""
    exact = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty_like(q)
    log_sum_exp = torch.empty(q.shape[:2], dtype=exact, device=q.device)
    for queries, keys in _runs(pairs):
        scores = _scores(q[queries], k[keys], pairs.causal, scale)  # [heads, queries, keys]
        log_sum_exp[queries] = scores.logsumexp(-1).T
        values = _to_heads(v[keys], q.shape[1])
        out[queries] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(q.dtype)
    return out, log_sum_exp


def partial_attention_backward_reference(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum_exp: Tensor,
    pairs: SequencePairs,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`P = exp(S - lse)`, `dV = P' dO`, `dS = P * (dO V' - rowsum(dO * O))`, `dQ = dS K`, `dK = dS' Q`."""
    heads, kv_heads = q.shape[1], k.shape[1]
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    for queries, keys in _runs(pairs):
        upstream = grad_out[queries].to(log_sum_exp.dtype)
        weights = (_scores(q[queries], k[keys], pairs.causal, scale) - log_sum_exp[queries].T[:, :, None]).exp()
        reached = (upstream * out[queries]).sum(-1).T[:, :, None]  # [heads, queries, 1]
        slopes = torch.einsum("qhd,khd->hqk", upstream, _to_heads(v[keys], heads))
        slopes = weights * (slopes - reached) * scale
        dq[queries] = torch.einsum("hqk,khd->qhd", slopes, _to_heads(k[keys], heads)).to(q.dtype)
        of_keys = torch.einsum("hqk,qhd->khd", slopes, q[queries].to(slopes.dtype))
        of_values = torch.einsum("hqk,qhd->khd", weights, upstream)
        dk[keys] = of_keys.unflatten(1, (kv_heads, -1)).sum(2).to(k.dtype)
        dv[keys] = of_values.unflatten(1, (kv_heads, -1)).sum(2).to(v.dtype)
    return dq, dk, dv


def _runs(pairs: SequencePairs) -> Iterator[tuple[slice, slice]]:
    queries, keys = pairs.cu_seqlens_q.tolist(), pairs.cu_seqlens_k.tolist()
    for run in range(pairs.runs):
        yield slice(queries[run], queries[run + 1]), slice(keys[run], keys[run + 1])


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    """Scaled products of one run, `[heads, queries, keys]`, minus infinity where a query does not see a key."""
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = torch.einsum("qhd,khd->hqk", q.to(exact), _to_heads(k, q.shape[1])) * scale
    if causal:
        future = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores


def _to_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values repeated for the query heads that read them, `[keys, heads, dim]` in float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).repeat_interleave(heads // x.shape[1], dim=1)
