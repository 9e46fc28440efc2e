"""diffusers' transformers as a float64 reference: their own casts to float32 are held off."""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

import torch

from loong_core.parallel.context import ParallelContext

_FLOAT = torch.Tensor.float


@contextmanager
def float64_throughout():
    """`.float()` leaves float64 tensors as they are, so that a reference rounds nothing."""
    with patch.object(torch.Tensor, "float", lambda self: self if self.dtype is torch.float64 else _FLOAT(self)):
        yield


def copy_weights(ours, reference, weight_map):
    """Give the reference our weights, and check that both have the same."""
    state = {}
    for parameter, placement in weight_map.placements(ours, ParallelContext.single()):
        for piece, values in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True):
            state[piece.name] = values.clone()
    missing, unexpected = reference.load_state_dict(state, strict=True)
    assert not missing
    assert not unexpected


def gradients(module, weight_map):
    """Our gradients under the reference's names."""
    found = {}
    for parameter, placement in weight_map.placements(module, ParallelContext.single()):
        assert parameter.grad is not None, placement.name
        for piece, values in zip(placement.pieces, placement.from_local(parameter.grad), strict=True):
            found[piece.name] = values
    return found
