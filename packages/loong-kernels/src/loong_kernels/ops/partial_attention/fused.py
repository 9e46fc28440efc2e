"""Partial attention by the attention kernels that torch ships for NVIDIA GPUs, forward and backward called singly.

Their own autograd would take each part for the whole softmax; called like this, backward is given the output and the
log-sum-exp over all parts, and its weights are then those of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loong_kernels.ops.attention.sdpa import aligned
from loong_kernels.ops.partial_attention.pairs import SequencePairs

_aten = torch.ops.aten


def flash_forward(q: Tensor, k: Tensor, v: Tensor, pairs: SequencePairs, scale: float) -> tuple[Tensor, Tensor]:
    """The variable-length flash kernel."""
    out, log_sum_exp, *_ = _aten._flash_attention_forward(
        aligned(q), aligned(k), aligned(v), *_lengths(pairs), 0.0, pairs.causal, False, scale=scale, **_window(pairs)
    )
    return out, log_sum_exp.T.contiguous()  # the kernel's is [heads, queries]


def flash_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum_exp: Tensor,
    pairs: SequencePairs,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Its backward; the random state is of dropout, of which there is none."""
    random_state = torch.zeros(2, dtype=torch.uint64, device=q.device)
    return _aten._flash_attention_backward(
        *(aligned(each) for each in (grad_out, q, k, v, out)),
        log_sum_exp.T.contiguous(),
        *_lengths(pairs),
        0.0,
        pairs.causal,
        random_state,
        torch.empty(0, device=q.device),
        scale=scale,
        **_window(pairs),
    )


def cudnn_forward(q: Tensor, k: Tensor, v: Tensor, pairs: SequencePairs, scale: float) -> tuple[Tensor, Tensor]:
    """The cuDNN kernel, for runs of one length."""
    out, log_sum_exp, *_ = _aten._scaled_dot_product_cudnn_attention(
        *(_heads_first(each, pairs) for each in (q, k, v)), None, True, 0.0, pairs.causal, False, scale=scale
    )
    return _tokens_first(out), log_sum_exp.flatten(2).transpose(1, 2).flatten(0, 1).contiguous()  # theirs: [b, h, s, 1]


def cudnn_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum_exp: Tensor,
    pairs: SequencePairs,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Its backward; as with flash there is no dropout, so no random state."""
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    stats = log_sum_exp.unflatten(0, (pairs.runs, -1)).transpose(1, 2)[..., None].contiguous()
    gradients = _aten._scaled_dot_product_cudnn_attention_backward(
        *(_heads_first(each, pairs) for each in (grad_out, q, k, v, out)),
        stats,
        seed,
        seed,
        None,
        None,
        None,
        pairs.max_seqlen_q,
        pairs.max_seqlen_k,
        0.0,
        pairs.causal,
        scale=scale,
    )
    dq, dk, dv = (_tokens_first(each) for each in gradients)
    return dq, dk, dv


def _lengths(pairs: SequencePairs) -> tuple[Tensor, Tensor, int, int]:
    return pairs.cu_seqlens_q, pairs.cu_seqlens_k, pairs.max_seqlen_q, pairs.max_seqlen_k


def _window(pairs: SequencePairs) -> dict[str, int]:
    return {"window_size_left": -1, "window_size_right": 0 if pairs.causal else -1}


def _heads_first(x: Tensor, pairs: SequencePairs) -> Tensor:
    """`[runs * length, heads, dim]` to `[runs, heads, length, dim]`, by strides."""
    return aligned(x).unflatten(0, (pairs.runs, -1)).transpose(1, 2)


def _tokens_first(x: Tensor) -> Tensor:
    """The inverse of `_heads_first`."""
    return x.transpose(1, 2).flatten(0, 1)
