"""Where an engine sums a weight's gradient over microbatches.

An engine that keeps such a sum, in float32 or wider, sets it as the parameter's `main_grad`. Layers hand it to their
op, which adds the weight's gradient to it within the product that makes it, and returns none to autograd. A weight
without one (another engine, a copy made for communication) gets its gradient from autograd as ever.
"""

from __future__ import annotations

from torch import Tensor


def main_gradient(weight: Tensor) -> Tensor | None:
    """The running sum of this weight's gradient, of its shape, or None where no engine keeps one."""
    return getattr(weight, "main_grad", None) if weight.requires_grad else None
