"""Compile every Triton kernel for an H200 without one, and print `{kernel: error or null}`; run by a test.

It is a process of its own because the tests' process runs Triton in its interpreter, where nothing is compiled.
"""

import importlib
import json

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

RMS_NORM = "loong_kernels.ops.rms_norm.triton_kernels"
ROTARY = "loong_kernels.ops.rotary.triton_kernels"
SWIGLU = "loong_kernels.ops.swiglu.triton_kernels"
CROSS_ENTROPY = "loong_kernels.ops.linear_cross_entropy.triton_maths"
KEPT = "loong_kernels.ops.linear_cross_entropy.triton_kept"
ADD_RMS_NORM = "loong_kernels.ops.add_rms_norm.triton_kernels"
QK_NORM_ROTARY = "loong_kernels.ops.qk_norm_rotary.triton_kernels"
EMBEDDING = "loong_kernels.ops.embedding.triton_kernels"
ADAMW = "loong_kernels.ops.adamw.triton_kernels"
EXPERT_PERMUTATION = "loong_kernels.ops.expert_permutation.triton_kernels"
GROUPED_WEIGHT_GRADIENT = "loong_kernels.ops.grouped_weight_gradient.triton_kernels"
GROUPED_SCALED_PRODUCT = "loong_kernels.ops.grouped_scaled_product.triton_kernels"
QUANTISE = "loong_kernels.ops.quantise.triton_kernels"
QUANTISE_SWIGLU = "loong_kernels.ops.quantise_swiglu.triton_kernels"
GATED_ADD = "loong_kernels.ops.gated_add.triton_kernels"
MODULATED_NORM = "loong_kernels.ops.modulated_norm.triton_kernels"
WIDE_NORM_ROTARY = "loong_kernels.ops.wide_norm_rotary.triton_kernels"

HEADS = {
    "HEADS": 32,
    "KV_HEADS": 8,
    "NORM": True,
    "HALF": 48,
    "HALF_BLOCK": 64,
    "REST": 32,
    "REST_BLOCK": 32,
    "HEADS_BLOCK": 32,
    "KV_BLOCK": 8,
}

KERNELS = [  # module, kernel, types of its run-time arguments, compile-time arguments
    (RMS_NORM, "_forward_kernel", "*bf16 *bf16 *bf16 i32 i32 i32 i32 i32 fp32", {"ROWS": 1, "COLUMNS": 4096}),
    (
        RMS_NORM,
        "_backward_kernel",
        "*bf16 *bf16 *bf16 *bf16 *fp32 i32 i32 i32 i32 i32 i32 i32 i32 fp32",
        {"BLOCKS_EACH": 8, "ROWS": 32, "COLUMNS": 128},
    ),
    (
        ROTARY,
        "_rotary_kernel",
        "*bf16 *bf16 *bf16 *bf16 *fp32 *fp32 i32 i32 i32 i32 i32 i32 i32",
        {
            "HEADS": 32,
            "KV_HEADS": 8,
            "NEGATE": True,
            "HALF": 48,
            "HALF_BLOCK": 64,
            "REST_BLOCK": 32,
            "HEADS_BLOCK": 16,
        },
    ),
    (SWIGLU, "_forward_kernel", "*bf16 *bf16 i32 i32", {"COLUMNS": 1024}),
    (SWIGLU, "_backward_kernel", "*bf16 *bf16 *bf16 i32 i32 i32", {"COLUMNS": 1024}),
    (
        CROSS_ENTROPY,
        "_fold_kernel",
        "*fp32 *i64 *fp32 *fp32 *fp32 *fp32 i32 i32 i32 fp32",
        {"CAPPED": True, "BLOCKS": 8, "COLUMNS": 4096},
    ),
    (
        CROSS_ENTROPY,
        "_gradient_kernel",
        "*fp32 *i64 *fp32 *fp32 *bf16 i32 i32 i32 fp32",
        {"CAPPED": True, "COLUMNS": 2048},
    ),
    (
        KEPT,
        "_exponentials_kernel",
        "*fp32 *i64 *bf16 *fp32 *fp32 *fp32 *fp32 i32 i32 i32 i32 fp32",
        {"CAPPED": True, "BLOCKS": 8, "COLUMNS": 4096},
    ),
    (
        ADD_RMS_NORM,
        "_forward_kernel",
        "*bf16 *bf16 *bf16 *bf16 *bf16 i32 i32 i32 i32 fp32",
        {"ROWS": 1, "COLUMNS": 4096},
    ),
    (
        ADD_RMS_NORM,
        "_backward_kernel",
        "*bf16 *bf16 *bf16 *bf16 *bf16 *fp32 i32 i32 i32 i32 fp32",
        {"HAS_TOTAL": True, "BLOCKS_EACH": 8, "ROWS": 1, "COLUMNS": 4096},
    ),
    (QK_NORM_ROTARY, "_forward_kernel", "*bf16 *bf16 *bf16 *bf16 *bf16 *fp32 *fp32 i32 i32 i32 i32 fp32", HEADS),
    (
        QK_NORM_ROTARY,
        "_backward_kernel",
        "*bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *fp32 *fp32 *fp32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 fp32",
        HEADS | {"TOKENS_EACH": 8, "VALUES_BLOCK": 1024},
    ),
    (EMBEDDING, "_add_rows_kernel", "*fp32 *i64 *i64 *bf16 i32 i32 i32 i32", {"TOKENS": 16, "COLUMNS": 512}),
    (
        ADAMW,
        "_update_kernel",
        "*fp32 *fp32 *fp32 *fp32 *bf16 i32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32 fp32",
        {"HAS_ROUNDED": True, "ELEMENTS": 2048},
    ),
    (EXPERT_PERMUTATION, "_copy_kernel", "*bf16 *i64 *bf16 i32 i32", {"TOP_K": 8, "COLUMNS": 1024}),
    (
        EXPERT_PERMUTATION,
        "_sum_kernel",
        "*bf16 *i64 *fp32 *bf16 i32 i32",
        {"WEIGHTED": True, "TOP_K": 8, "COLUMNS": 1024},
    ),
    (
        EXPERT_PERMUTATION,
        "_combine_backward_kernel",
        "*bf16 *bf16 *i64 *fp32 *bf16 *fp32 i32 i32 i32",
        {"TOP_K": 8, "TILES": 2, "COLUMNS": 1024},
    ),
    (
        MODULATED_NORM,
        "_forward_kernel",
        "*bf16 *fp32 *fp32 *i32 *bf16 i32 i32 i32 i32 fp32",
        {"STEPS": 2, "COLUMNS": 4096},
    ),
    (
        MODULATED_NORM,
        "_backward_kernel",
        "*bf16 *bf16 *fp32 *i32 *bf16 *fp32 i32 i32 i32 i32 fp32",
        {"PROGRAMS": 256, "COLUMNS": 4096},
    ),
    (GATED_ADD, "_forward_kernel", "*bf16 *bf16 *fp32 *i32 *bf16 i32 i32 i32 i32 i32", {"STEPS": 2, "COLUMNS": 4096}),
    (
        GATED_ADD,
        "_backward_kernel",
        "*bf16 *bf16 *fp32 *i32 *bf16 *fp32 i32 i32 i32 i32",
        {"PROGRAMS": 256, "COLUMNS": 4096},
    ),
    (WIDE_NORM_ROTARY, "_forward_kernel", "*bf16 *bf16 *fp32 *fp32 *bf16 i32 i32 i32 i32 i32 fp32", {"PAIRS": 2048}),
    (
        WIDE_NORM_ROTARY,
        "_backward_kernel",
        "*bf16 *bf16 *bf16 *fp32 *fp32 *bf16 *fp32 i32 i32 i32 i32 i32 i32 fp32",
        {"TOKENS_EACH": 8, "PAIRS": 2048},
    ),
    (
        GROUPED_WEIGHT_GRADIENT,
        "_add_weight_gradient_kernel",
        "*bf16 *bf16 *i32 *fp32 i32 i32",
        {"OUT": 128, "IN": 128, "ROWS": 64, "INTERPRETED": False},
    ),
    (
        GROUPED_SCALED_PRODUCT,
        "_product_kernel",
        "tensordesc<fp8e4nv[64,128]> *fp32 tensordesc<fp8e4nv[128,128]> *fp32 *i32 *bf16 i32 i32 i32 i32 i32",
        {"SIDE_BY_SIDE": True, "BLOCKS": 16, "EXPERTS": 128, "ROWS": 64, "INTERPRETED": False},
    ),
    (
        QUANTISE,
        "_largest_kernel",
        "*bf16 *i32 *i32 i32 i32 i32",
        {"GRAIN": 2, "BY_ROW": True, "BY_COLUMN": True},
    ),
    *[
        (
            QUANTISE,
            "_quantise_kernel",
            "*bf16 *i32 *i32 *fp8e4nv *fp32 *fp8e4nv *fp32 i32 i32 i32 i32 i32 i32 i32",
            {"GRAIN": grain, "BY_ROW": True, "BY_COLUMN": True, "INTERPRETED": False},
        )
        for grain in range(4)
    ],
    (
        QUANTISE_SWIGLU,
        "_forward_kernel",
        "*bf16 *bf16 *fp8e4nv *fp32 *fp8e4nv *fp32 i32 i32 i32 i32",
        {"BY_ROW": True, "BY_COLUMN": True, "KEEP": True, "INTERPRETED": False},
    ),
    (
        QUANTISE_SWIGLU,
        "_backward_kernel",
        "*bf16 *bf16 *bf16 *fp8e4nv *fp32 *fp8e4nv *fp32 i32 i32 i32 i32 i32",
        {"BY_ROW": True, "BY_COLUMN": True, "KEEP": True, "INTERPRETED": False},
    ),
]


def compile_one(module: str, name: str, types: str, constants: dict) -> str | None:
    kernel = getattr(importlib.import_module(module), name)
    names = [argument for argument in kernel.arg_names if argument not in constants]
    signature = dict(zip(names, types.split(), strict=True)) | dict.fromkeys(constants, "constexpr")
    try:
        compiled = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None if compiled.asm["cubin"] else "no cubin"


def compile_all() -> dict[str, str | None]:
    """As an eager launch types Python floats, and as torch.compile does."""
    results = {}
    for module, name, types, constants in KERNELS:
        op = module.split(".")[2]
        grain = f" by grain {constants['GRAIN']}" if "GRAIN" in constants else ""
        results[f"{op}{name}{grain}"] = compile_one(module, name, types, constants)
        if types.endswith(" fp32"):
            results[f"{op}{name} by torch.compile"] = compile_one(module, name, types[:-4] + "fp64", constants)
    return results


if __name__ == "__main__":
    print(json.dumps(compile_all()))
