"""Time the expert ops on a GPU at the shape of Qwen3-30B-A3B's layer, and a whole layer forward and backward.

python tools/bench/expert_ops.py [--tokens 8192]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from loong_core.nn.moe.config import MoEConfig, RouterConfig
from loong_core.nn.moe.layer import MixtureOfExperts
from loong_core.nn.moe.load import RoutingRecord
from loong_core.parallel.context import ParallelContext
from loong_kernels import combine_from_experts, grouped_linear, order_by_expert, permute_to_experts, registry

HIDDEN, SIZE, EXPERTS, TOP_K = 2048, 768, 128, 8


def milliseconds(run: Callable[[], object], repeats: int = 20) -> float:
    """Mean time of a call on the device, after three to warm up."""
    for _ in range(3):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


def both_ways(forward: Callable[[], Tensor]) -> tuple[float, float]:
    """Milliseconds of forward and of backward."""
    out = forward()
    upstream = torch.randn_like(out)
    return milliseconds(forward), milliseconds(lambda: out.backward(upstream, retain_graph=True))


def random(*shape: int) -> Tensor:
    """A bfloat16 tensor that wants a gradient."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).mul_(0.05).requires_grad_()


def time_products(rows: int, wide: int, out: int, offsets: Tensor) -> None:
    """Print `grouped_linear`'s times, its weight gradient returned and added to a sum."""
    x, weight = random(rows, wide), random(EXPERTS, out, wide)
    rate = 2e-9 * rows * wide * out
    for label, total in (("", None), (", gradient into a sum", torch.zeros(EXPERTS, out, wide, device="cuda"))):
        there, back = both_ways(partial(grouped_linear, x, weight, offsets, weight_grad_into=total))
        print(
            f"grouped_linear {wide} to {out}{label}: {there:.3f} / {back:.3f} ms, "
            f"{rate / there:.0f} / {2 * rate / back:.0f} TFLOP/s"
        )


def main() -> None:
    """Print a line for each op and implementation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    tokens = parser.parse_args().tokens
    torch.manual_seed(0)
    choices = torch.rand(tokens, EXPERTS, device="cuda").topk(TOP_K).indices
    order = order_by_expert(choices, EXPERTS)
    print(f"order_by_expert: {milliseconds(lambda: order_by_expert(choices, EXPERTS)):.3f} ms")
    x, rows, weights = random(tokens, HIDDEN), random(tokens * TOP_K, HIDDEN), random(tokens, TOP_K)
    for name in ("gathers", "triton"):
        registry.configure({"permute_to_experts": name, "combine_from_experts": name})
        for op, forward in (
            ("permute", lambda: permute_to_experts(x, order)),
            ("combine", lambda: combine_from_experts(rows, weights.float(), order)),
        ):
            print(f"{op}, {name}: {' / '.join(f'{time:.3f}' for time in both_ways(forward))} ms")
    registry.configure({})
    for wide, out in ((HIDDEN, 2 * SIZE), (SIZE, HIDDEN)):
        time_products(tokens * TOP_K, wide, out, order.offsets)
    context = ParallelContext.single("cuda")
    config = MoEConfig(RouterConfig(EXPERTS, TOP_K, aux_coefficient=0.001), SIZE)
    layer = MixtureOfExperts(HIDDEN, config, context, torch.bfloat16, 0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    record = RoutingRecord(tokens, torch.tensor(tokens, device="cuda"), 1)
    there, back = both_ways(lambda: layer(x, tokens, record))
    rate = 2e-9 * tokens * HIDDEN * (3 * TOP_K * SIZE + EXPERTS)
    print(f"whole layer: {there:.3f} / {back:.3f} ms, {rate / there:.0f} / {2 * rate / back:.0f} TFLOP/s")
    for decision in registry.decisions():
        print(decision)


if __name__ == "__main__":
    main()
