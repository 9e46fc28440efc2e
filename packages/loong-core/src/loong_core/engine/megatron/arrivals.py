"""Telling megatron-core that a gradient has arrived, where layers add it to `main_grad` themselves.

megatron-core reduces a bucket once all its parameters' gradients have arrived, which it learns from a hook on each
parameter's accumulation. With overlapped reduction that hook wants a `grad`, and adds it to `main_grad` unless
`grad_added_to_main_grad` says that this was done. Both are set here, in a hook that runs just before: some uses of a
parameter may return a gradient while others add theirs (see `loong_core.nn.main_gradient`), and what was returned is
still to be added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def announce_arrivals(stage: nn.Module) -> list[Any]:
    """Prepare a stage's trained parameters, before megatron-core wraps it.

    Returns:
        what the caller must keep for as long as the stage: the accumulation nodes, which hold the hooks.
    """
    nodes = []
    for parameter in stage.parameters():
        if parameter.requires_grad:
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
            node.register_hook(_announce(parameter))  # type: ignore[union-attr]
            nodes.append(node)
    return nodes


def _announce(parameter: nn.Parameter) -> Callable[..., None]:
    def hook(*unused: Any) -> None:
        returned = parameter.grad is not None
        parameter.grad_added_to_main_grad = not returned  # type: ignore[attr-defined]
        if not returned:
            # No memory of the parameter's size: nobody reads it.
            parameter.grad = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)

    return hook
