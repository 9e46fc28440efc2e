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
        results[f"{op}{name}"] = compile_one(module, name, types, constants)
        if types.endswith(" fp32"):
            results[f"{op}{name} by torch.compile"] = compile_one(module, name, types[:-4] + "fp64", constants)
    return results


if __name__ == "__main__":
    print(json.dumps(compile_all()))
