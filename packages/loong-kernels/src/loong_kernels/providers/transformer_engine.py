"""TransformerEngine's norm and products (extra `te`) as implementations named `te`.

They are checked by the same conformance suite as ours, and served only where a run file names them
(`kernels: {linear: te}`): on an H200 ours are at least as fast.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

from loong_kernels.registry import Implementation, Registry

NEEDS = "the extra loong-kernels[te] and an NVIDIA GPU"
_PRODUCT_STEP = 8
"""TransformerEngine's products take widths in multiples of 16 bytes."""


def register(registry: Registry) -> None:
    """Add the implementations to a registry."""
    for op, function, supports in (
        ("rms_norm", "rms_norm_te", _norm_supports),
        ("linear", "linear_te", _linear_supports),
    ):
        registry.register(
            Implementation(
                name="te",
                op=op,
                devices=("cuda",),
                fn=f"loong_kernels.providers.transformer_engine:{function}",
                priority=None,
                available=_missing,
                supports=supports,
                needs=NEEDS,
                uses=frozenset({"transformer_engine"}),
            )
        )


def rms_norm_te(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The op `rms_norm` by TransformerEngine's kernels."""
    return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-any-return]


def linear_te(x: Tensor, weight: Tensor, bias: Tensor | None, weight_grad_into: Tensor | None) -> Tensor:
    """The op `linear` by TransformerEngine's products, which add to a sum in place."""
    return _Linear.apply(x, weight, bias, weight_grad_into)  # type: ignore[no-any-return]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        te = _te()
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        y, _, inverse_rms = te.rmsnorm_fwd(flat, weight.contiguous(), eps, None, None, te.dtypes[x.dtype], 0, False)
        ctx.save_for_backward(flat, weight, inverse_rms)
        return y.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        flat, weight, inverse_rms = ctx.saved_tensors
        upstream = gradients[0].reshape(flat.shape).contiguous()
        of_x, of_weight = _te().rmsnorm_bwd(upstream, flat, inverse_rms, weight.contiguous(), 0, False)
        return of_x.view(gradients[0].shape), of_weight.view_as(weight), None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weight_grad_into: Tensor | None) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.weight_grad_into = weight_grad_into
        return _te().general_gemm(weight, x, out_dtype=x.dtype, layout="TN", bias=bias)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        upstream = gradients[0].contiguous()
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        te = _te()
        of_x = te.general_gemm(weight, upstream, out_dtype=x.dtype, layout="NN", grad=True)[0] if wants_x else None
        of_weight = None
        if wants_weight and ctx.weight_grad_into is None:
            of_weight = te.general_gemm(x, upstream, out_dtype=weight.dtype, layout="NT", grad=True)[0]
        elif wants_weight:
            sums = ctx.weight_grad_into
            te.general_gemm(x, upstream, out_dtype=sums.dtype, layout="NT", grad=True, accumulate=True, out=sums)
        return of_x, of_weight, upstream.sum(0) if wants_bias else None, None


class _Functions:
    """What is used of TransformerEngine."""

    def __init__(self) -> None:
        from transformer_engine.pytorch.constants import TE_DType
        from transformer_engine.pytorch.cpp_extensions import general_gemm
        from transformer_engine_torch import rmsnorm_bwd, rmsnorm_fwd

        self.dtypes, self.general_gemm = TE_DType, general_gemm
        self.rmsnorm_fwd, self.rmsnorm_bwd = rmsnorm_fwd, rmsnorm_bwd


@functools.cache
def _te() -> _Functions:
    return _Functions()


def _missing() -> str | None:
    if importlib.util.find_spec("transformer_engine") is None:
        return "transformer-engine is not installed: pip install 'loong-kernels[te]'"
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    try:
        _te()
    except (ImportError, OSError, RuntimeError) as error:
        return f"transformer-engine does not load: {error}"
    return None


def _norm_supports(case: Any) -> str | None:
    if case.dtype is not torch.bfloat16 or case.weight_dtype is not torch.bfloat16:
        return f"takes bfloat16 here, not {case.dtype} and {case.weight_dtype}"
    return None if case.hidden % _PRODUCT_STEP == 0 else f"takes widths in multiples of {_PRODUCT_STEP}"


def _linear_supports(case: Any) -> str | None:
    if case.dtype is not torch.bfloat16 or case.weight_dtype is not torch.bfloat16:
        return f"takes bfloat16 here, not {case.dtype} and {case.weight_dtype}"
    if case.in_features % _PRODUCT_STEP or case.out_features % _PRODUCT_STEP:
        return f"takes widths in multiples of {_PRODUCT_STEP}, not {case.in_features} and {case.out_features}"
    return None
