"""Environment variables that Kunlun's libraries do well with in training.

What each means is what public P800 training scripts and their comments say; there is no public reference. Variables
that name a machine's network cards, or that trade accuracy for speed, are the user's to set.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """One variable: its default here, who reads it, and what it does as far as is publicly known."""

    name: str
    value: str
    read_by: str
    meaning: str


DEFAULTS: tuple[Variable, ...] = (
    Variable(
        "CUDART_DUMMY_REGISTER",
        "1",
        "CUDA runtime shim",
        "registering the NVIDIA kernels inside torch's libraries succeeds without doing anything",
    ),
    Variable(
        "XPU_FORCE_USERMODE_LAUNCH",
        "1",
        "driver",
        "kernels are launched from user space, without a call into the operating system each",
    ),
    Variable(
        "XMLIR_FUSED_SDP_CHOICE",
        "1",
        "torch_xmlir",
        "scaled_dot_product_attention runs Kunlun's fused attention; 0 takes it apart into single operations",
    ),
    Variable(
        "XMLIR_CUDNN_ENABLED",
        "1",
        "torch_xmlir",
        "convolutions, three-dimensional ones too, run Kunlun's cuDNN stand-in",
    ),
    Variable("BKCL_ENABLE_XDR", "1", "BKCL", "machines exchange device memory by RDMA without a copy through the host"),
    Variable(
        "BKCL_FORCE_L3_RDMA",
        "0",
        "BKCL",
        "RDMA buffers stay out of the on-chip L3 memory, which may be too small for them",
    ),
    Variable("BKCL_TREE_THRESHOLD", "0", "BKCL", "size threshold of the tree algorithm, as in all public P800 scripts"),
    Variable("BKCL_ALL_TO_ALL_OPT", "1", "BKCL", "the optimised all-to-all between machines (expert parallelism)"),
    Variable(
        "BKCL_RING_HOSTID_USE_RANK", "1", "BKCL", "rings are ordered by rank; since BKCL 1.2.11, to become its default"
    ),
)
"""Set where the user has set nothing."""

LEFT_ALONE: dict[str, str] = {
    "BKCL_SOCKET_IFNAME": "name of this machine's network interface, where BKCL does not find it",
    "BKCL_RDMA_NICS": "this machine's RDMA cards, one a device, for training on several machines",
    "BKCL_RDMA_VERBS": "with BKCL_QPS_PER_CONNECTION, on Hygon hosts only",
    "XDNN_FC_GEMM_DTYPE": "arithmetic inside matmuls (int32_with_ll, float16, ...): trades accuracy for speed",
    "XDNN_USE_FAST_SWISH": "approximate activations: trade accuracy for speed",
    "XMLIR_PARALLEL_SAVE_MEMORY": "true uses less memory and is slower",
    "XMLIR_DIST_ASYNC_ISEND_IRECV": "true makes pipeline sends asynchronous",
    "XMLIR_DISABLE_CUDA_ALLOCATOR": "1 takes torch's memory figures away, and with them this project's",
}
"""Variables that a user may meet in scripts and that are not set here, with what they do."""
