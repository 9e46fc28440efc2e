"""Calls of `partial_attention` and its backward that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, inside_a_larger_tensor, normal, transposed
from loong_kernels.ops.attention.samples import attention_inputs
from loong_kernels.ops.partial_attention import partial_attention, partial_attention_backward
from loong_kernels.ops.partial_attention.pairs import SequencePairs
from loong_kernels.ops.partial_attention.reference import partial_attention_reference

_CASES: dict[str, tuple[list[int], list[int], int, int, int, dict[str, Any]]] = {
    "grouped heads, unequal runs": ([5, 1, 13], [2, 7, 9], 4, 2, 16, {}),
    "one token": ([1], [1], 2, 2, 8, {"causal": True}),
    "causal, unequal runs": ([5, 1, 13], [5, 1, 13], 4, 2, 16, {"causal": True}),
    "causal, one length": ([12, 12], [12, 12], 4, 2, 16, {"causal": True}),
    "one length of queries, another of keys": ([16, 16], [8, 8], 4, 1, 32, {}),
    "head_dim 24": ([3, 4], [6, 2], 3, 3, 24, {}),
    "head_dim 128": ([70, 2], [66, 130], 2, 1, 128, {}),
    "own scale": ([2, 6], [6, 2], 2, 2, 32, {"scale": 0.3}),
}
"""Lengths of the runs of queries and of keys, heads, key/value heads, head_dim, options."""


def forward_samples() -> Iterator[Sample]:
    """Edge sizes, odd sizes, strides and dtypes of the forward op."""
    yield from _samples("partial_attention", _inputs, _call_forward)


def backward_samples() -> Iterator[Sample]:
    """The same of the backward op, where output and log-sum-exp are of more keys than those given."""
    yield from _samples("partial_attention_backward", _backward_inputs, _call_backward)


def _samples(op: str, inputs: Callable[..., dict[str, Tensor]], call: Callable[..., Any]) -> Iterator[Sample]:
    def sample(name: str) -> Sample:
        queries, keys, heads, kv_heads, dim, options = _CASES[name]
        make = partial(inputs, queries=queries, keys=keys, heads=heads, kv_heads=kv_heads, dim=dim, options=options)
        return Sample(
            op,
            name,
            make,
            partial(call, longest=(max(queries), max(keys)), options=options),
            constant=frozenset({"q", "k", "v", "out", "grad_out", "log_sum_exp"}),
            wider=frozenset({"log_sum_exp"}),
            tolerance=64,
        )

    for name in _CASES:
        yield from in_both_dtypes(sample(name))
    for name in ("causal, one length", "grouped heads, unequal runs"):
        for words, view in (("slices", inside_a_larger_tensor), ("vectors not contiguous", transposed)):
            strided = dict.fromkeys(("q", "k", "v", "out", "grad_out"), view)
            for dtype in (torch.float32, torch.bfloat16):
                yield replace(sample(name), name=f"{name}, {words}", views=strided, dtype=dtype)


def _inputs(
    generator: Generator,
    queries: list[int],
    keys: list[int],
    heads: int,
    kv_heads: int,
    dim: int,
    options: Mapping[str, Any],
) -> dict[str, Tensor]:
    bounds = {name: _bounds(runs) for name, runs in (("cu_seqlens_q", queries), ("cu_seqlens_k", keys))}
    return {**attention_inputs(generator, (sum(queries), heads, dim), (sum(keys), kv_heads, dim)), **bounds}


def _backward_inputs(
    generator: Generator,
    queries: list[int],
    keys: list[int],
    heads: int,
    kv_heads: int,
    dim: int,
    options: Mapping[str, Any],
) -> dict[str, Tensor]:
    """As `_inputs`, with the joined attention over these keys and twice as many others."""
    made = _inputs(generator, queries, keys, heads, kv_heads, dim, options)
    others = attention_inputs(generator, (0, heads, dim), (2 * sum(keys), kv_heads, dim))
    more = SequencePairs(made["cu_seqlens_q"], 2 * made["cu_seqlens_k"], max(queries), 2 * max(keys), causal=False)
    parts = [
        partial_attention_reference(
            made["q"], made["k"], made["v"], _pairs(made, (0, 0), options), _scale(dim, options)
        ),
        partial_attention_reference(made["q"], others["k"], others["v"], more, _scale(dim, options)),
    ]
    joined = torch.logaddexp(parts[0][1], parts[1][1])
    out = sum((part * (own - joined).exp()[..., None] for part, own in parts), torch.zeros(()))
    return {**made, "out": out, "log_sum_exp": joined, "grad_out": normal(generator, *out.shape)}


def _bounds(runs: list[int]) -> Tensor:
    return torch.tensor([0, *runs]).cumsum(0).to(torch.int32)


def _scale(dim: int, options: Mapping[str, Any]) -> float:
    return options.get("scale", dim**-0.5)


def _pairs(t: Mapping[str, Tensor], longest: tuple[int, int], options: Mapping[str, Any]) -> SequencePairs:
    return SequencePairs(t["cu_seqlens_q"], t["cu_seqlens_k"], *longest, causal=options.get("causal", False))


def _call_forward(t: Mapping[str, Tensor], longest: tuple[int, int], options: Mapping[str, Any]) -> Any:
    return partial_attention(t["q"], t["k"], t["v"], _pairs(t, longest, options), scale=options.get("scale"))


def _call_backward(t: Mapping[str, Tensor], longest: tuple[int, int], options: Mapping[str, Any]) -> Any:
    tensors: Any = [t[name] for name in ("grad_out", "q", "k", "v", "out", "log_sum_exp")]
    return partial_attention_backward(*tensors, _pairs(t, longest, options), scale=options.get("scale"))
