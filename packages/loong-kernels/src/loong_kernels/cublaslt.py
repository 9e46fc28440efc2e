"""Products by cuBLASLt called directly, for what torch does not offer.

That is: 8-bit products added in place to a float32 sum, and a choice among the library's algorithms by measurement.
All matrices are row-major. cuBLASLt counts in columns, so it is given the transposed product, `out' = right' left'`.
For each shape class its heuristic is asked once, for `CANDIDATES` algorithms; each is timed on the operands at hand and
the fastest is kept for the process. The library is the one that torch has loaded.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loong_kernels.errors import KernelChoiceError

CANDIDATES = 24
WORKSPACE = 32 * 2**20
"""Bytes lent to each product."""
REPEATS = 2

_TYPES = {torch.float32: 0, torch.bfloat16: 14, torch.float8_e4m3fn: 28}  # cudaDataType_t
_COMPUTE_FLOAT32 = 68  # CUBLAS_COMPUTE_32F
_TRANSPOSED = {False: 0, True: 1}  # cublasOperation_t
_DESCRIPTION = {"transa": 3, "transb": 4, "a_scale": 17, "b_scale": 18, "fast": 25, "a_mode": 31, "b_mode": 32}
_SCALE_MODES = {"tensor": 0, "rows": 3, "tiles": 4, "blocks": 5}  # cublasLtMatmulMatrixScale_t
_MAX_WORKSPACE = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES


class _Algorithm(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64 * 8)]


class _Candidate(ctypes.Structure):
    _fields_ = [
        ("algorithm", _Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


@dataclass(frozen=True)
class Scaled:
    """The scales of an 8-bit side: float32 on the device, and what shares one (a grain of `loong_kernels.fp8`)."""

    scales: Tensor
    grain: str


@dataclass(frozen=True)
class _Shape:
    """A class of products that share a plan."""

    device: int
    rows: int
    columns: int
    summed: int
    left: tuple[torch.dtype, bool, int, str]
    right: tuple[torch.dtype, bool, int, str]
    out: tuple[torch.dtype, int]
    added: bool


def product(
    out: Tensor,
    left: Tensor,
    right: Tensor,
    *,
    add: bool = False,
    left_scaled: Scaled | None = None,
    right_scaled: Scaled | None = None,
) -> Tensor:
    """`out = left @ right`, or `out += left @ right`, accumulated in float32.

    Args:
        out: `[rows, columns]` bfloat16 or float32, rows contiguous.
        left: `[rows, summed]` bfloat16 or e4m3, contiguous or the transpose of a contiguous matrix.
        right: `[summed, columns]`, likewise. In e4m3 `left` is contiguous and `right` the transpose of a contiguous
            one: the chip's 8-bit products take no others.
        add: whether to add to `out`.
        left_scaled: scales of `left` in e4m3, by row of it.
        right_scaled: scales of `right`, by column of it.

    Raises:
        KernelChoiceError: cuBLASLt has no algorithm for this.
    """
    shape = _Shape(
        out.get_device(),
        out.shape[0],
        out.shape[1],
        left.shape[1],
        (left.dtype, *_layout(left), left_scaled.grain if left_scaled else ""),
        (right.dtype, *_layout(right), right_scaled.grain if right_scaled else ""),
        (out.dtype, out.stride(0)),
        add,
    )
    with _LOCK:
        plan = _PLANS.get(shape)
        if plan is None:
            plan = _PLANS[shape] = _Plan(shape)
            plan.choose(out, left, right, left_scaled, right_scaled)
        plan.run(out, left, right, left_scaled, right_scaled)
    return out


def _layout(matrix: Tensor) -> tuple[bool, int]:
    """Whether a matrix is the transpose of one with contiguous rows, and that one's row stride."""
    if matrix.stride(1) == 1:
        return False, matrix.stride(0)
    if matrix.stride(0) == 1:
        return True, matrix.stride(1)
    raise ValueError(f"a side of a product has strides {matrix.stride()}; rows or columns are to be contiguous")


_LOCK = threading.RLock()  # descriptors of a plan are changed by each call; backward runs in another thread
_PLANS: dict[_Shape, _Plan] = {}


@functools.cache
def _library() -> Any:
    """The library, found among what torch has loaded."""
    torch.cuda.init()
    for number in (13, 12):
        try:
            library = ctypes.CDLL(f"libcublasLt.so.{number}")
        except OSError:
            continue
        return library
    raise OSError("libcublasLt.so.13 is not among the loaded libraries")


@functools.cache
def _handle(device: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        _must(_library().cublasLtCreate(ctypes.byref(handle)), "cublasLtCreate")
    return handle


def _must(status: int, what: str) -> None:
    if status:
        raise KernelChoiceError([f"{what} of cuBLASLt failed with status {status}"])


class _Plan:
    """Descriptors and algorithm of one shape class."""

    def __init__(self, shape: _Shape) -> None:
        self._shape = shape
        self._algorithm = _Algorithm()
        self._one = ctypes.c_float(1.0)
        self._kept = ctypes.c_float(1.0 if shape.added else 0.0)
        library = _library()
        self._description = ctypes.c_void_p()
        _must(
            library.cublasLtMatmulDescCreate(ctypes.byref(self._description), _COMPUTE_FLOAT32, _TYPES[torch.float32]),
            "a description",
        )
        # `right` comes first, and a matrix with contiguous rows is, counted in columns, its own transpose.
        self._set("transa", ctypes.c_int32(_TRANSPOSED[shape.right[1]]))
        self._set("transb", ctypes.c_int32(_TRANSPOSED[shape.left[1]]))
        for name, side in (("a", shape.right), ("b", shape.left)):
            if side[3]:
                self._set(f"{name}_mode", ctypes.c_int32(_SCALE_MODES[side[3]]))
        self._right = self._matrix(shape.summed, shape.columns, shape.right)
        self._left = self._matrix(shape.rows, shape.summed, shape.left)
        self._out = self._matrix(shape.rows, shape.columns, (shape.out[0], False, shape.out[1]))

    def _set(self, name: str, value: Any) -> None:
        status = _library().cublasLtMatmulDescSetAttribute(
            self._description, _DESCRIPTION[name], ctypes.byref(value), ctypes.sizeof(value)
        )
        _must(status, f"attribute {name}")

    def _matrix(self, rows: int, columns: int, side: tuple[Any, ...]) -> ctypes.c_void_p:
        dtype, transposed, stride = side[:3]
        inner, outer = (rows, columns) if transposed else (columns, rows)
        layout = ctypes.c_void_p()
        status = _library().cublasLtMatrixLayoutCreate(
            ctypes.byref(layout),
            _TYPES[dtype],
            ctypes.c_uint64(inner),
            ctypes.c_uint64(outer),
            ctypes.c_int64(stride),
        )
        _must(status, "a matrix layout")
        return layout

    def choose(self, out: Tensor, left: Tensor, right: Tensor, *scaled: Scaled | None) -> None:
        """Time what the heuristic offers and keep the fastest; nothing is added to `out`."""
        library = _library()
        preference = ctypes.c_void_p()
        _must(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "a preference")
        size = ctypes.c_size_t(WORKSPACE)
        library.cublasLtMatmulPreferenceSetAttribute(
            preference, _MAX_WORKSPACE, ctypes.byref(size), ctypes.sizeof(size)
        )
        self._set_scales(*scaled)
        found, results = ctypes.c_int(0), (_Candidate * CANDIDATES)()
        status = library.cublasLtMatmulAlgoGetHeuristic(
            _handle(self._shape.device), self._description, self._right, self._left, self._out, self._out,
            preference, CANDIDATES, results, ctypes.byref(found),
        )  # fmt: skip
        library.cublasLtMatmulPreferenceDestroy(preference)
        if status or not found.value:
            raise KernelChoiceError([f"cuBLASLt has no algorithm for {self._shape} (status {status})"])
        usable = [one for one in results[: found.value] if one.state == 0]
        scratch = torch.empty_like(out)
        times = [self._time(one.algorithm, scratch, left, right, scaled) for one in usable]
        best = min(range(len(usable)), key=times.__getitem__)
        self._algorithm = usable[best].algorithm

    def _time(
        self, algorithm: _Algorithm, out: Tensor, left: Tensor, right: Tensor, scaled: tuple[Scaled | None, ...]
    ) -> float:
        """Milliseconds of one product; infinite if the algorithm fails."""
        self._algorithm = algorithm
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        try:
            self.run(out, left, right, *scaled)
            start.record()
            for _ in range(REPEATS):
                self.run(out, left, right, *scaled)
            end.record()
            end.synchronize()
        except KernelChoiceError:
            return float("inf")
        return start.elapsed_time(end) / REPEATS

    def _set_scales(self, left: Scaled | None, right: Scaled | None) -> None:
        for name, side in (("a_scale", right), ("b_scale", left)):
            if side is not None:
                self._set(name, ctypes.c_void_p(side.scales.data_ptr()))

    def run(self, out: Tensor, left: Tensor, right: Tensor, *scaled: Scaled | None) -> None:
        """One product on the current stream."""
        self._set_scales(*scaled)
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=out.device)
        status = _library().cublasLtMatmul(
            _handle(self._shape.device), self._description, ctypes.byref(self._one),
            ctypes.c_void_p(right.data_ptr()), self._right, ctypes.c_void_p(left.data_ptr()), self._left,
            ctypes.byref(self._kept), ctypes.c_void_p(out.data_ptr()), self._out,
            ctypes.c_void_p(out.data_ptr()), self._out, ctypes.byref(self._algorithm),
            ctypes.c_void_p(workspace.data_ptr()), ctypes.c_size_t(WORKSPACE),
            ctypes.c_void_p(torch.cuda.current_stream(out.device).cuda_stream),
        )  # fmt: skip
        _must(status, f"a product of {self._shape}")
