"""Peak memory and time of the fused linear cross-entropy against full logits, forward and backward, on a CUDA GPU.

    python tools/bench/cross_entropy_memory.py
    python tools/bench/cross_entropy_memory.py --hidden 2048 --tokens 4096 --budget-mib 256 512 1024

Without `--budget-mib` each implementation cuts as it does by default; `as chosen` is what a call gets that names none.

Prints JSON lines: one a way to compute, with the peak above what the inputs hold (the gradients are part of it), the
milliseconds of forward and of forward and backward (median of the repetitions), and the ratio of full logits' peak to
its own. `full logits` is what models do without the op: a bfloat16 head, its logits in float32, torch's cross-entropy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from loong_kernels import linear_cross_entropy, registry
from loong_kernels.ops.linear_cross_entropy.chunk_plan import plan_chunks

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def full_logits(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Per-token loss with all logits held."""
    return F.cross_entropy((hidden @ weight.T).float(), labels, reduction="none")


def measure(loss_of: Loss, hidden: Tensor, weight: Tensor, labels: Tensor, repetitions: int) -> dict[str, float]:
    """Peak bytes above the inputs, milliseconds, and the mean loss of one way to compute."""

    def forward() -> Tensor:
        return loss_of(hidden, weight, labels).mean()

    def both() -> Tensor:
        loss = forward()
        torch.autograd.grad(loss, (hidden, weight))
        return loss.detach()

    both()  # compiles kernels, fills the allocator
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss = both()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    times = {name: milliseconds(step, repetitions) for name, step in (("forward", forward), ("both", both))}
    return {
        "peak_bytes": peak,
        "peak_gib": round(peak / 2**30, 3),
        "forward_ms": times["forward"],
        "forward_backward_ms": times["both"],
        "loss": round(loss.item(), 6),
    }


def milliseconds(step: Callable[[], Tensor], repetitions: int) -> float:
    """Median device time of a step."""
    taken = []
    for _ in range(repetitions):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end))
    return round(statistics.median(taken), 3)


def rows_within(budget: int, tokens: int, vocabulary: int) -> int:
    """Vocabulary rows whose float32 logits of all tokens stay within `budget` bytes."""
    start, end = plan_chunks(tokens, vocabulary, budget, 4, None).rows[0]
    return end - start


def main() -> int:
    """Measure every way for every hidden size asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--hidden", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--budget-mib", type=int, nargs="+", help="logits held at once, instead of the op's default")
    parser.add_argument("--repetitions", type=int, default=10)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            "cross_entropy_memory.py measures a CUDA GPU and torch sees none here; run it on a machine that has one, "
            "with a CUDA build of torch",
            file=sys.stderr,
        )
        return 2
    budgets: list[int | None] = [mib << 20 for mib in chosen.budget_mib] if chosen.budget_mib else [None]
    for hidden_size in chosen.hidden:
        generator = torch.Generator("cuda").manual_seed(0)
        shapes = (chosen.tokens, hidden_size), (chosen.vocabulary, hidden_size)
        hidden, weight = (torch.randn(*s, device="cuda", generator=generator).bfloat16() for s in shapes)
        weight.mul_(hidden_size**-0.5)
        hidden.requires_grad_()
        weight.requires_grad_()
        labels = torch.randint(0, chosen.vocabulary, (chosen.tokens,), device="cuda", generator=generator)
        about = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "tokens": chosen.tokens,
            "vocabulary": chosen.vocabulary,
            "hidden": hidden_size,
        }
        full = measure(full_logits, hidden, weight, labels, chosen.repetitions)
        print(json.dumps({**about, "way": "full logits", **full}), flush=True)
        standings = registry.standing("linear_cross_entropy", "cuda")
        usable = [one.implementation.name for one in standings if one.reason is None]
        for name in ["auto", *(name for name in usable if name != "reference")]:
            for budget in budgets:
                rows = None if budget is None else rows_within(budget, chosen.tokens, chosen.vocabulary)
                fused_loss = partial(linear_cross_entropy, chunk_size=rows)
                with registry.using({"linear_cross_entropy": name}):
                    fused = measure(fused_loss, hidden, weight, labels, chosen.repetitions)
                ratio = round(full["peak_bytes"] / fused["peak_bytes"], 2)
                row = {
                    **about,
                    "way": "as chosen" if name == "auto" else name,
                    "budget_mib": None if budget is None else budget >> 20,
                    "chunk_size": rows,
                    **fused,
                    "full_logits_peak_ratio": ratio,
                }
                print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
